"""Serves an agent or the hub over MCP."""
