"""The programs."""

from retinue_koi.command import main

__all__ = ["main"]
