"""MCP to any agent through the hub."""
