"""Runs other programs under resource limits."""
