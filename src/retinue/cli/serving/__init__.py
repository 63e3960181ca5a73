"""Commands that start a long-running process, and the folder of a new agent."""
