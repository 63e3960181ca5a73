"""What we call: the only sockets, subprocesses and disks."""
