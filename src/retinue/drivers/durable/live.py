"""The executions of this process: known from before they begin until their end is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from retinue.drivers.durable.events import EventTable, NewEvent, Told
from retinue.workflows.run_records import EventKind


@dataclass(eq=False)
class Live:
    """One execution of a run in this process; ``ended`` once its end is recorded or it has lost the run."""

    run_id: str
    root: str = ""
    events: EventTable | None = None
    task: asyncio.Task[Any] | None = None
    aborted: bool = False
    told: Told = field(default_factory=lambda: Told(frozenset(), 0))
    repairs: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, kind: EventKind, path: str, facts: Mapping[str, Any], once: str | None = None) -> None:
        below = self.run_id[len(self.root) :].lstrip("/")
        step = "/".join(part for part in (below, path) if part)
        assert self.events is not None
        self.events.add(NewEvent(self.root, self.run_id, kind, step, dict(facts), once=once))

    def was_told(self, once: str) -> bool:
        # Only an execution that goes on with another's work may have to tell for it.
        return not self.repairs or once in self.told.once

    def abort(self) -> None:
        """Cut it off, once: a second time would cut off what it does to end."""
        if not self.aborted:
            self.aborted = True
            if self.task is not None:
                self.task.cancel()


class LiveRuns:
    """All of them, by run."""

    def __init__(self) -> None:
        self._live: dict[str, Live] = {}
        self._starting: dict[str, Live] = {}

    @property
    def outermost(self) -> int:
        """How many outermost runs are here."""
        return sum(live.root == live.run_id for live in self._live.values())

    def find(self, run_id: str) -> Live | None:
        return self._live.get(run_id)

    def list_all(self) -> list[Live]:
        return list(self._live.values())

    def list_within(self, ids: Iterable[str]) -> list[Live]:
        """Those of these runs and of all below them."""
        within = tuple(f"{run_id}/" for run_id in ids)
        return [live for live in self._live.values() if f"{live.run_id}/".startswith(within)]

    @contextmanager
    def announce(self, run_id: str) -> Iterator[None]:
        """While a run is being started: known before its execution begins, so that it can be stopped."""
        live = Live(run_id)
        if run_id not in self._live:
            self._live[run_id] = self._starting[run_id] = live
        try:
            yield
        finally:
            asyncio.get_running_loop().call_soon(self._withdraw, live)

    def begin(self, run_id: str, *, announced: bool) -> Live:
        """An execution begins: the one that was announced, or another."""
        live = (self._starting.pop(run_id, None) if announced else None) or Live(run_id)
        self._live[run_id] = live
        return live

    def end(self, live: Live) -> None:
        """An execution has ended; another of the same run may have begun meanwhile."""
        if self._live.get(live.run_id) is live:
            del self._live[live.run_id]
        live.ended.set()

    def _withdraw(self, live: Live) -> None:
        """Its execution has begun by now, or it is not here."""
        if self._starting.get(live.run_id) is live:
            del self._starting[live.run_id]
            self.end(live)
