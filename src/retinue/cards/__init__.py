"""The agent card in its forms: pallet card, Markdown, rows of lists (pure)."""
