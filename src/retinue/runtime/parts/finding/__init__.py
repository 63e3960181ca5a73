"""Parts that change how agents are found: the history of calls, and the entrance exam."""
