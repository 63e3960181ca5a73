"""Runs whose processes are killed, frozen and cut off from their database."""
