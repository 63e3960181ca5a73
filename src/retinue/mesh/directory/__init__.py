"""The agent directory: the known agents, and the choice among them for a call."""
