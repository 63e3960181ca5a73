"""A2A (Agent2Agent protocol): endpoint, client and codec."""
