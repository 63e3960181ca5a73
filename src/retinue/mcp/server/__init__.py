"""An agent or the hub as an MCP server."""
