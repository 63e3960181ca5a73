"""The REST routes of seed 003, which every agent and every hub has (K-21, K-22)."""
