"""Runs of seven kinds, whose hubs, workers and agents are killed and frozen at random, and how they ended."""
