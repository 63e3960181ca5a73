"""Facts about the machine of a process: memory limits, and the holders of ports."""
