"""Parts that change how agents are found: the history of calls, the entrance exam, receipts of other hubs."""
