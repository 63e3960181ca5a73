"""Composes imported servers and APIs of a mesh, and the logins at them."""
