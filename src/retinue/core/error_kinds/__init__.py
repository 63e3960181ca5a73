"""The classes of the error tree, by topic; import them from `retinue.core.errors`."""
