"""The agent directory: which agents exist and which of them may take a call."""
