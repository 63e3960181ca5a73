"""Runs long work of the event loop in slices, so that other calls run between them."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

SLICE_S = 0.004
"""How long work goes on before others run."""

_SORTED_AT_ONCE = 2_000
"""Items that are sorted before others run: about 1 ms."""

T = TypeVar("T")


async def run_in_slices(steps: Iterable[object]) -> None:
    """Take all steps of an iterator; others run after each slice of them."""
    began = time.perf_counter()
    for _ in steps:
        if time.perf_counter() - began > SLICE_S:
            await asyncio.sleep(0)
            began = time.perf_counter()


async def sort_in_slices(items: Sequence[T], key: Callable[[T], str]) -> list[T]:
    """As `sorted`, while others run."""
    parts: list[list[T]] = []
    starts = range(0, len(items), _SORTED_AT_ONCE)
    slices = (sorted(items[start : start + _SORTED_AT_ONCE], key=key) for start in starts)
    await run_in_slices(map(parts.append, slices))
    merged: list[T] = []
    await run_in_slices(map(merged.append, heapq.merge(*parts, key=key)))
    return merged
