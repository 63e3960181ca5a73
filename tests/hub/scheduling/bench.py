"""Nodes with a scheduler each, over one database of schedules, one set of runs and one clock."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from retinue.authoring.agent import Agent
from retinue.authoring.local import LocalLookup
from retinue.core.call import Principal
from retinue.hub.known_skills import KnownSkills
from retinue.hub.run_access import RunAccess
from retinue.hub.scheduling.all_schedules import AllSchedules
from retinue.hub.scheduling.book import ScheduleBook
from retinue.hub.scheduling.events import EventStarter
from retinue.hub.scheduling.firing import Firing
from retinue.hub.scheduling.scheduler import Scheduler
from retinue.hub.scheduling.trigger_book import TriggerBook
from retinue.hub.scheduling.webhooks import Webhooks
from retinue.hub.workflows import RunStarter
from retinue.mesh.guard.trace_guard import new_trace
from retinue.mesh.permissions import Access
from retinue.testing.memory_caller import MemoryCaller
from retinue.testing.memory_runs import MemoryRuns
from retinue.web.security import LOCAL_TOKEN
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.tables.revised import ScheduleTable
from retinue.workflows.durable.tables.triggers import TriggerTable
from retinue.workflows.interpreter.step_loop import Interpreter
from retinue.workflows.library import Library, StoredText
from retinue.workflows.orchestrator import Orchestrator
from retinue.workflows.schedules import ScheduleOwner
from retinue.workflows.times import parse_time
from tests.workflows.implementations import make_database

BEGIN = parse_time("2026-12-01T00:00:00Z")

TOKEN = Principal("token:ci", "token", frozenset({"exposed", "mesh"}))

WORK = "name: nightly\nsteps:\n- {id: a, skill: work, with: {n: 1}}\n"

WAITS = "name: nightly\nsteps:\n- {id: a, wait_for: go}\n"


def make_agent() -> Agent:
    """The agent that offers ``work``, as the checks before a run find it."""
    agent = Agent("work-agent", version="1.0.0")

    @agent.skill("work")
    async def offer_work(**arguments: Any) -> Any:
        """Gives its arguments back."""
        return arguments

    return agent


class TextShelf:
    """A shelf with the texts of a mapping."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts

    async def list_names(self) -> Sequence[str]:
        return list(self.texts)

    async def find_text(self, name: str, version: str | None = None) -> StoredText | None:
        text = self.texts.get(name)
        return None if text is None else StoredText(text, name, is_own=True)


class Node:
    """One process with a library, a scheduler and a book; nodes with one ``home`` share a state folder."""

    def __init__(self, bench: ScheduleBench, home: Path, texts: dict[str, str]) -> None:
        self.texts = texts
        self.table = ScheduleTable(bench.database, home)
        access = RunAccess(bench.runs, Access())
        library, known = Library([TextShelf(texts)]), KnownSkills(bench.lookup, Access())
        self.starter = RunStarter(Orchestrator(bench.runs), library, access, known)
        self.firing = Firing(self.starter, bench.check_owner, lambda: replace(new_trace(), calls_left=99))
        self.scheduler = Scheduler(self.open_schedules, self.firing, clock=bench.read_clock)
        self.book = ScheduleBook(self.open_schedules, self.firing, clock=bench.read_clock)
        self.trigger_table = TriggerTable(bench.database, home)
        self.triggers = TriggerBook(
            self.open_triggers, self.firing, url="http://hub.test/", clock=bench.read_clock
        )
        self.all = AllSchedules(self.book, self.triggers, self.firing)
        self.webhooks = Webhooks(
            self.open_triggers, EventStarter(self.firing, clock=bench.read_clock), clock=bench.read_clock
        )

    async def open_schedules(self) -> ScheduleTable:
        return self.table

    async def open_triggers(self) -> TriggerTable:
        return self.trigger_table

    async def look(self) -> float:
        return await self.scheduler.look()

    async def add(self, principal: Principal = LOCAL_TOKEN, **keys: Any) -> dict[str, Any]:
        return await self.book.add(principal, "nightly", None, keys or None)

    async def show(self, principal: Principal = LOCAL_TOKEN) -> dict[str, Any]:
        (row,) = await self.book.list_all(principal)
        return row


class ScheduleBench:
    """Opens nodes; ``now`` is what all clocks show, ``ended`` the end of the rights of owners by id."""

    def __init__(self, folder: Path, database: RunDatabase) -> None:
        self.now = BEGIN
        self.ended: dict[str, str] = {}
        self.database = database
        self.caller = MemoryCaller()
        self.runs = MemoryRuns(Interpreter(self.caller).run, clock=self.read_clock)
        self._folder = folder

        async def work(given: Any) -> Any:
            return given

        self.caller.offer("work", work)
        self.lookup = LocalLookup({"work-agent": make_agent()}, None)

    def read_clock(self) -> float:
        return self.now

    def check_owner(self, owner: ScheduleOwner) -> str:
        return self.ended.get(owner.id, "")

    def node(self, text: str = WORK, *, home: str = "one") -> Node:
        folder = self._folder / home
        folder.mkdir(exist_ok=True)
        return Node(self, folder / "nodes", {"nightly": text})

    async def list_runs(self) -> list[str]:
        """The ids of all runs, the oldest first."""
        return [record.id for record in reversed(await self.runs.list_all())]

    async def settle(self) -> None:
        """Wait for the end of all runs that wait for nothing."""
        await asyncio.gather(*(self.runs.finish(run) for run in await self.list_runs()))


@asynccontextmanager
async def open_schedule_bench(folder: Path) -> AsyncIterator[ScheduleBench]:
    shutil.copy(await make_database(), folder / "runs.db")
    database = RunDatabase(f"sqlite:///{folder}/runs.db")
    bench = ScheduleBench(folder, database)
    try:
        yield bench
    finally:
        await bench.runs.aclose()
        database.close()
