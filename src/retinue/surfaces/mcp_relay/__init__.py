"""``/agents/{agent}/mcp``: MCP to any agent of the mesh through the hub, message by message."""
