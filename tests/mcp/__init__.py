"""The MCP endpoint of an agent, over real sockets and with the official client."""
