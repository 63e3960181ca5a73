"""Nodes of a KOI network and their handlers."""
