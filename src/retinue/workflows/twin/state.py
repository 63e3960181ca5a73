"""What the in-memory runs hold: a run, its journal, its signals and its events."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from retinue.workflows.run_records import (
    EventKind,
    RunEvent,
    RunRecord,
    RunRequest,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One durable call that is done: what it was, and its outcome as JSON text."""

    kind: str
    path: str
    outcome: bytes


class EventLog:
    """An append-only list of events that can be followed."""

    def __init__(self) -> None:
        self._events: list[RunEvent] = []
        self._changed = asyncio.Event()

    def append(self, kind: EventKind, run_id: str, step: str, at: float, facts: Mapping[str, Any]) -> int:
        """Add an event; returns its number."""
        self._events.append(RunEvent(len(self._events) + 1, kind, run_id, step, at, facts))
        # Whoever waits holds the old one; the next waiter gets a new one.
        self._changed.set()
        self._changed = asyncio.Event()
        return len(self._events)

    def list_after(self, seq: int) -> tuple[RunEvent, ...]:
        return tuple(self._events[seq:])

    async def follow(self, seq: int) -> AsyncIterator[RunEvent]:
        while True:
            changed = self._changed
            for event in self._events[seq:]:
                seq = event.seq
                yield event
            if seq == len(self._events):
                await changed.wait()


class Run:
    """One run and all that belongs to it; ``root`` is the outermost run, itself if it is that."""

    def __init__(
        self,
        *,
        record: RunRecord,
        events: EventLog,
        root: Run | None = None,
        journal: list[Entry] | None = None,
    ) -> None:
        self.record = record
        self.events = events
        self.root = root or self
        self.journal = journal or []
        self.children: list[Run] = []
        self.ended = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.stopping = False
        self.finished_seq = 0
        self._signals: dict[str, deque[Any]] = defaultdict(deque)
        self._signalled = asyncio.Event()

    def owns(self, event: RunEvent) -> bool:
        """Whether an event is of this run or of one below it."""
        return event.run_id == self.record.id or event.run_id.startswith(f"{self.record.id}/")

    def name_step(self, path: str) -> str:
        """The path of a step of this run, seen from the outermost run."""
        below = self.record.id[len(self.root.record.id) :].lstrip("/")
        return "/".join(part for part in (below, path) if part)

    def emit(self, kind: EventKind, path: str, at: float, facts: Mapping[str, Any]) -> int:
        return self.events.append(kind, self.record.id, self.name_step(path), at, facts)

    def put_signal(self, topic: str, value: Any) -> None:
        self._signals[topic].append(value)
        self._signalled.set()

    def count_signals(self, topic: str) -> int:
        return len(self._signals[topic])

    async def take_signal(self, topic: str) -> Any:
        while not self._signals[topic]:
            self._signalled.clear()
            await self._signalled.wait()
        return self._signals[topic].popleft()


@dataclass(frozen=True, slots=True)
class Services:
    """What a context needs of the runs it belongs to."""

    sleep: Callable[[float], Awaitable[None]]
    clock: Callable[[], float]
    find: Callable[[str], Run]
    start: Callable[[RunRequest, str, Run | None], Run]
    resume: Callable[[Run], None]
    stop: Callable[[Run], Awaitable[None]]
