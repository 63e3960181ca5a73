"""Commands that set up and maintain a mesh on this machine."""
