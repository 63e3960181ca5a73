"""Runs as values, and the ports that a run uses."""
