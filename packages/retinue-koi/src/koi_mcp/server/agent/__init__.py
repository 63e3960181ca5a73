"""The server of an agent."""
