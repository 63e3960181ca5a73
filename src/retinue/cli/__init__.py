"""The command line. ``main`` is the program ``retinue``; each command is imported when it is asked for."""

from retinue.cli.program import main

__all__ = ["main"]
