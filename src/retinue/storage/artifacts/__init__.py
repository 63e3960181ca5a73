"""Artifacts of a state folder: who holds them, their quotas, and the files that are saved."""
