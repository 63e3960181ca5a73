"""The client side of A2A: calls to agents of other frameworks, and imported agents in the directory."""
