"""What a process reads of its machine: memory limits, and the holders of ports."""
