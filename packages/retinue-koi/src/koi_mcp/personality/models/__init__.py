"""The models of a personality."""
