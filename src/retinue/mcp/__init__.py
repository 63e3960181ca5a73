"""The Model Context Protocol, one folder for all its parts."""
