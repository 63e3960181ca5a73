"""The seeds' own exchanges against the running system (specification 14)."""
