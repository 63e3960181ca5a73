"""The entrance exam as a part: examines agents that join, that change, and all of them from time to time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import structlog

from retinue.core.errors import RetinueError
from retinue.hub.examiner import Examiner, ExamLimits
from retinue.mesh.directory.directory import Directory
from retinue.mesh.entry import Entry
from retinue.mesh.exams import ExamBook, ExamStatus
from retinue.mesh.observing.metrics import Figures, Metric
from retinue.parts.part import AgentsStarted, FirstReading, Opened, Part
from retinue.parts.process import Process
from retinue.runtime.serving import end_task
from retinue.settings_tables import ExamTable
from retinue.storage.files import replace_file
from retinue.storage.state import State

LOOK_S = 5.0
"""Seconds between two looks for agents that joined or changed."""

AT_ONCE = 100
"""Agents of one round; the others wait for the next one."""

EXAMS = "retinue_agent_exams"
METRICS = {EXAMS: Metric("gauge", "Agents by the result of their entrance exam", ("result",))}

_STATUSES: tuple[ExamStatus, ...] = ("passed", "failed", "not_examined")
_log = structlog.get_logger("retinue.exam")


class ExamPart(Part):
    """Examines the agents of a hub; with the policy ``off`` it does nothing."""

    name = "exam"
    kinds = frozenset({"hub"})
    is_required = True
    needs = (Directory, ExamBook)
    runs_after = (FirstReading,)
    ready_after = (AgentsStarted,)

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        table, book = process.tables.get(ExamTable), process.get(ExamBook)
        if table.policy == "off":
            yield Opened()
            return
        book.policy = table.policy
        book.load(await asyncio.to_thread(_read, process.state))
        if table.policy == "require":
            process.dispatcher.select = book.select
        directory = process.get(Directory)
        limits = ExamLimits(table.calls, table.timeout_s, table.dollars)
        exams = Exams(
            directory, book, Examiner(process.dispatcher.dispatch, limits), process.state, table.every_s
        )
        begun: list[asyncio.Task[None]] = []

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            try:
                yield
            finally:
                for task in begun:
                    await end_task(task)

        async def on_ready() -> None:
            begun.append(asyncio.create_task(exams.run(), name="exams"))

        async def figures(figures: Figures) -> None:
            counts = book.count(directory.list_entries())
            for status in _STATUSES:
                figures.put(EXAMS, counts.get(status, 0), status)

        yield Opened(running=running, on_ready=on_ready, metrics=METRICS, figures=figures)


class Exams:
    """Examines the agents of a directory that are due, one after another."""

    def __init__(
        self, directory: Directory, book: ExamBook, examiner: Examiner, state: State, every_s: float
    ) -> None:
        self._directory = directory
        self._book = book
        self._examiner = examiner
        self._state = state
        self._every_s = every_s

    async def run(self) -> None:
        """Go on until the task is cancelled."""
        while True:
            try:
                await self.examine_due()
            except (RetinueError, OSError) as error:
                _log.warning("exams interrupted", error=str(error))
            await asyncio.sleep(LOOK_S)

    async def examine_due(self) -> int:
        """Examine the agents that are due; returns how many."""
        await self._directory.ensure_fresh()
        now = time.time()
        entries = [entry async for page in self._directory.iterate_pages() for entry in page]
        due = [entry for entry in entries if self._is_due(entry, now)]
        for entry in due[:AT_ONCE]:
            await self._examine(entry)
        if due:
            self._book.keep_only(entries)
            await asyncio.to_thread(_write, self._state, self._book)
        return len(due[:AT_ONCE])

    def _is_due(self, entry: Entry, now: float) -> bool:
        return entry.enabled and entry.reachable is not False and self._book.is_due(entry, now, self._every_s)

    async def _examine(self, entry: Entry) -> None:
        listing = await self._directory.open(entry)
        if listing is None:
            return
        result = await self._examiner.examine(listing, self._directory.name_of(entry))
        self._book.put(entry, result)
        if result.status == "failed":
            _log.warning("agent failed its exam", agent=entry.name, problems=list(result.problems))


def _read(state: State) -> dict[str, object]:
    """The stored results; {} where there are none or the file is damaged, as before the first exam."""
    try:
        rows = orjson.loads(state.exams.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, orjson.JSONDecodeError) as error:
        _log.warning("results of exams not read", path=str(state.exams), error=str(error))
        return {}
    return rows if isinstance(rows, dict) else {}


def _write(state: State, book: ExamBook) -> None:
    try:
        replace_file(state.exams, orjson.dumps(book.to_json()), mode=0o600)
    except OSError as error:
        _log.warning("results of exams not stored", path=str(state.exams), error=str(error))
