"""The MCP client, and imported MCP servers."""
