"""Limits on a chain of calls: depth, cycles and call budget."""
