"""The registry endpoint /v2."""
