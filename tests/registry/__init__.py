"""Registries of every kind: one suite over all, their weather, and the way between them."""
