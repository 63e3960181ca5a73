"""Parts that note each of their moments, and a process that opens them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from retinue.authoring.agent import Agent
from retinue.core.errors import InvalidSettingError
from retinue.parts.part import Opened, Part
from retinue.parts.process import Echo, Process
from retinue.runtime.agent_core import open_agent
from retinue.runtime.launch import Start
from retinue.runtime.loading.targets import Target
from retinue.runtime.serving import Stop
from retinue.settings import Settings
from retinue.storage.state import State

TOY = "toy"
"""A kind of process of its own, of which no part of Retinue is."""

OPEN, START, READY = "open", "start", "get ready"
END, DRAIN, CLOSE = "end", "drain", "close"


class NotedPart(Part):
    """Notes what happens to it; ``failing`` is the moment in which it fails."""

    kinds = frozenset({TOY})
    failing: str = ""

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def open(self, process: Process) -> AbstractAsyncContextManager[Opened]:
        return self._open()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Opened]:
        self._enter(OPEN)
        try:
            yield Opened(
                product=self,
                running=self._running,
                on_ready=self._get_ready,
                drain=lambda: self._note(DRAIN),
            )
        finally:
            self._note(CLOSE)

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        self._enter(START)
        try:
            yield
        finally:
            self._note(END)

    async def _get_ready(self) -> None:
        self._enter(READY)

    def _enter(self, moment: str) -> None:
        self._fail(moment)
        self._notes.append(f"{self.name}: {moment}")

    def _note(self, moment: str) -> None:
        self._notes.append(f"{self.name}: {moment}")
        self._fail(moment)

    def _fail(self, moment: str) -> None:
        if moment == self.failing:
            raise InvalidSettingError(self.name, "it is broken", remedy="mend it")


def make_part(name: str, notes: list[str], **facts: Any) -> NotedPart:
    """A part of a class of its own, which declares ``facts``."""
    part: NotedPart = type(name, (NotedPart,), {"name": name, **facts})(notes)
    return part


@asynccontextmanager
async def open_toy(folder: Path, echo: Echo = lambda line: None) -> AsyncIterator[Process]:
    """A process of the kind `TOY` around an agent without skills."""
    state = State(folder)
    state.prepare()
    target = Target(Agent("toy-agent", version="1.0.0"), ())
    async with open_agent(TOY, target, None, Start(Settings(), state, echo, Stop())) as process:
        yield process
