"""The socket: what a process is made of, and what a part of one is given and gives."""
