"""Serves agents and the hub on standard input and output."""
