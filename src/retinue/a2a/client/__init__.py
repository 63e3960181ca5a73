"""Agents elsewhere that speak A2A: calls to them, and imported ones in the directory."""
