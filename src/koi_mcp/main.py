"""The programs."""

from retinue.cli.koi import main

__all__ = ["main"]
