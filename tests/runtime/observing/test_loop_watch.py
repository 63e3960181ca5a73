"""A function that keeps the event loop from running is named once, with its file and line."""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from retinue.runtime.observing.loop_watch import BlockingPlace, LoopWatch, find_author_frame

WAIT_S = 60.0


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
    # where other programs use the processors, the loop may be kept from running once more, in another place
    place = places[0]
    assert [one.function for one in places].count(place.function) == 1
    assert place.function in ("block_until", "test_the_function_that_blocks_is_named_once")
    assert place.file == __file__
    assert place.line > 0
    assert place.seconds >= 0.05


def test_an_installed_program_is_not_the_author_of_what_blocks() -> None:
    program = Path(sysconfig.get_path("scripts")).resolve() / "retinue"
    assert program.exists()
    names: dict[str, FrameType] = {}
    exec(compile("frame = sys._getframe()", str(program), "exec"), {"sys": sys}, names)
    # the frames below it are those of this test
    assert find_author_frame(names["frame"]) is sys._getframe()


async def test_a_loop_that_runs_is_not_reported() -> None:
    places: list[BlockingPlace] = []
    watching = asyncio.create_task(LoopWatch(places.append, limit_s=5.0).run())
    await asyncio.sleep(0.05)
    watching.cancel()
    assert places == []
