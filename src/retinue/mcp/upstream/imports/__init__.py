"""Imported MCP servers: their connections as agents of the hub, and reads of their resources and prompts."""
