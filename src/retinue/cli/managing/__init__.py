"""Commands that set up and look after a mesh on this machine."""
