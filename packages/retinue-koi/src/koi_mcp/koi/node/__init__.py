"""Nodes of a KOI network."""
