"""Parts that change how agents are found: the history of calls."""
