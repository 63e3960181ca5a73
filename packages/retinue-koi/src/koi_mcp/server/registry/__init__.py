"""The server of a coordinator."""
