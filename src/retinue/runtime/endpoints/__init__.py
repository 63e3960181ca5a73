"""Builds the endpoints of a process: services, routes and cards of each protocol."""
