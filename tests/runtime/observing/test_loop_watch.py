"""A function that keeps the event loop from running is named once, with its file and line."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from retinue.runtime.observing.loop_watch import BlockingPlace, LoopWatch

WAIT_S = 30.0


def block_until(done: Callable[[], bool]) -> None:
    """Keep the thread busy, as a skill without await would."""
    until = time.monotonic() + WAIT_S
    while not done() and time.monotonic() < until:
        time.sleep(0.01)


async def test_the_function_that_blocks_is_named_once() -> None:
    places: list[BlockingPlace] = []
    told = threading.Event()

    def report(place: BlockingPlace) -> None:
        places.append(place)
        told.set()

    watching = asyncio.create_task(LoopWatch(report, limit_s=0.05).run())
    await asyncio.sleep(0)
    block_until(told.is_set)
    await asyncio.sleep(0.06)
    watching.cancel()
    (place,) = places
    assert place.function in ("block_until", "test_the_function_that_blocks_is_named_once")
    assert place.file == __file__
    assert place.line > 0
    assert place.seconds >= 0.05


async def test_a_loop_that_runs_is_not_reported() -> None:
    places: list[BlockingPlace] = []
    watching = asyncio.create_task(LoopWatch(places.append, limit_s=5.0).run())
    await asyncio.sleep(0.05)
    watching.cancel()
    assert places == []
