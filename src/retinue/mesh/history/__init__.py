"""The history of calls that were found by words: what came of them, and how it changes the ranking."""
