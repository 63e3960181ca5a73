"""In-memory implementations of ports and other helpers that several test folders share."""
