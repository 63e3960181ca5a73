"""Hints for the author of an agent, as a part: skills without a description, code that blocks others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import structlog

from retinue.parts.part import Opened, Part
from retinue.parts.process import Process
from retinue.runtime.observing.loop_watch import BlockingPlace, LoopWatch
from retinue.runtime.serving import in_background

_SKILL_REMEDY = "write the skill with def, which runs in a thread, or call await asyncio.to_thread(…)"

_log = structlog.get_logger("retinue.author")


class AuthorHintsPart(Part):
    """Warns of skills without a docstring, and of a function that keeps the event loop from running."""

    name = "author-hints"
    kinds = frozenset({"agent"})
    is_required = True

    def __init__(self, *, has_functions: bool = True) -> None:
        self._has_functions = has_functions

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        # the warnings of an agent in Markdown name the line instead
        for skill in process.agent.skills if self._has_functions else ():
            if not skill.description.strip():
                _log.warning(
                    "skill without a description: searches and models choose by it",
                    skill=skill.id,
                    remedy="write a docstring",
                )

        yield Opened(running=watch_loop(_SKILL_REMEDY))


def watch_loop(remedy: str) -> Callable[[], AbstractAsyncContextManager[None]]:
    """Warns of functions that keep the event loop from running, while the process runs."""

    def warn_of(place: BlockingPlace) -> None:
        _log.warning(
            "the event loop stands still, and all other calls wait",
            function=place.function,
            at=f"{place.file}:{place.line}",
            seconds=round(place.seconds, 1),
            remedy=remedy,
        )

    return lambda: in_background(LoopWatch(warn_of).run(), name="loop watch")
