"""Agents from typed functions: what the author of an agent touches."""
