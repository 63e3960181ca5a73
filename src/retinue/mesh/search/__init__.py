"""Finding skills by words: what they say, which fit, and why."""
