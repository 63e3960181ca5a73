"""What the processes are made of: the order of their steps and the bytes of what they show."""
