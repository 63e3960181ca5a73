"""Asynchronous utilities; ``async`` is a keyword, so import them with importlib."""
