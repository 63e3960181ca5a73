"""Pure codecs and renderings of the agent card: pallet card, A2A card, Markdown, rows of lists."""
