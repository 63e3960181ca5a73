"""Workflow definitions: grammar, parsing and validation."""
