"""MCP messages and their values (pure)."""
