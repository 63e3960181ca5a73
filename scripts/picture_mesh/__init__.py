"""The mesh of the pictures: agents, imported MCP servers, workflows, and the calls and runs that fill it."""
