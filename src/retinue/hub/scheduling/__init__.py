"""Schedules: starting workflows at certain times, with the rights of whoever added the schedule."""
