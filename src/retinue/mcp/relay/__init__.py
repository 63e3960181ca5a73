"""Relays MCP through the hub to any agent."""
