"""Receipts: what hubs measured of agents, and what it weighs."""
