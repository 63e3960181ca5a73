"""The adapter from personalities to MCP."""
