"""Configuration files of MCP clients: pure editing of their text, and where each client keeps it."""
