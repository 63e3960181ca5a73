"""The socket: the parts of a process, with their inputs and products."""
