"""Workflows as they are written: the grammar, its spellings, and what is checked when one is read."""
