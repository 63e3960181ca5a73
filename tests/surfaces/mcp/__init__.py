"""The parts of the MCP door on their own."""
