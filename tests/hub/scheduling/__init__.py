"""Schedules at the hub."""
