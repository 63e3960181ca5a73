"""Configuration files of MCP clients."""
