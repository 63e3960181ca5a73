"""The MCP door: an agent's or a hub's skills, resources and prompts for MCP clients, on HTTP and stdio."""
