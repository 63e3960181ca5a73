"""Validation against the JSON Schemas of skills."""
