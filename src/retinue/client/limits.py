"""The limits of a program's calls, where it names none."""

from __future__ import annotations

from typing import Final

TIMEOUT_S: Final = 60.0

RETRIES: Final = 2
"""Repetitions of one call that the hub did not get, or whose repetition is safe."""
