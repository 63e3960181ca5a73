"""The REST routes of seed 003."""
