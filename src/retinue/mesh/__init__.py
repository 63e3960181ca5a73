"""The logic of one call; no wire format, no socket."""
