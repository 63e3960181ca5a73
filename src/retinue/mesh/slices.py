"""Runs long work of the event loop in slices, so that other calls run between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

SLICE_S = 0.004
"""How long work goes on before others run."""


async def run_in_slices(steps: Iterable[object]) -> None:
    """Take all steps of an iterator; others run after each slice of them."""
    began = time.perf_counter()
    for _ in steps:
        if time.perf_counter() - began > SLICE_S:
            await asyncio.sleep(0)
            began = time.perf_counter()
