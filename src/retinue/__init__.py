"""Retinue: an agent mesh."""
