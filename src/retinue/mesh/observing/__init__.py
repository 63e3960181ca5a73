"""Events of calls, and the figures counted from them."""
