"""The entrance exam as a part: examines agents that join, that change, and all of them from time to time."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import orjson
import structlog

from retinue.core.errors import RetinueError
from retinue.hub.examiner import Examiner, ExamLimits
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listing_cache import ListingChange
from retinue.mesh.entry import Entry
from retinue.mesh.exams import ExamBook, ExamStatus, digest_of
from retinue.mesh.observing.metrics import Figures, Metric
from retinue.parts.part import AgentsStarted, FirstReading, Opened, Part
from retinue.parts.process import Process
from retinue.runtime.serving import ending
from retinue.settings_tables import ExamTable
from retinue.storage.files import replace_file
from retinue.storage.state import State

LOOK_S = 5.0
"""Seconds between two looks for agents that joined or changed."""

LOOK_AGAIN_S = 60.0
"""Seconds until all agents are looked at again where no agent has changed."""

AT_ONCE = 100
"""Agents of one round; the others wait for the next one."""

SIDE_BY_SIDE = 4
"""Agents that are examined at the same time."""

WRITE_S = 5.0
"""Seconds after which the results of a round that goes on are stored."""

APART_S = 600.0
"""Least seconds between two exams of an agent, also if its card changes."""

AWAY_AGAIN_S = 60.0
"""Seconds until an agent that does not answer is asked again, at first."""

_MONEY = "money"
"""The key of what exams have spent today; keys of results have three words."""

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
        stored = await asyncio.to_thread(_read, process.state)
        book.load(stored)
        if table.policy == "require":
            process.dispatcher.select = book.select
        directory = process.get(Directory)
        limits = ExamLimits(table.calls, table.timeout_s, table.dollars, table.dollars_per_day)
        examiner = Examiner(process.dispatcher.dispatch, limits)
        examiner.money.load(stored.get(_MONEY))
        exams = Exams(directory, book, examiner, process.state, table.every_s)
        begun: list[asyncio.Task[None]] = []

        async def on_ready() -> None:
            begun.append(asyncio.create_task(exams.run(), name="exams"))

        async def figures(figures: Figures) -> None:
            for status in _STATUSES:
                figures.put(EXAMS, exams.counts[status], status)

        yield Opened(running=lambda: ending(begun), on_ready=on_ready, metrics=METRICS, figures=figures)


@dataclass(frozen=True, slots=True)
class _Pause:
    """How long an agent is left alone after ``at``; for another digest at most `APART_S`."""

    digest: str
    at: float
    wait_s: float
    is_repeated: bool

    def is_over(self, digest: str, now: float) -> bool:
        return now - self.at >= (self.wait_s if digest == self.digest else min(self.wait_s, APART_S))


class Exams:
    """Examines the agents of a directory that are due, a few at the same time.

    The pauses between the exams of an agent that fails or does not answer double, up to ``every_s``.
    """

    def __init__(
        self,
        directory: Directory,
        book: ExamBook,
        examiner: Examiner,
        state: State,
        every_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory
        self._book = book
        self._examiner = examiner
        self._state = state
        self._every_s = every_s
        self._clock = clock
        self._pauses: dict[tuple[str, str, str], _Pause] = {}
        self._written_at = 0.0
        self._looked_at = 0.0
        self._has_changed = True
        self.counts: Counter[ExamStatus] = Counter()
        """The number of agents by result, as of the last look."""
        directory.subscribe(self._note_change)

    async def run(self) -> None:
        """Go on until the task is cancelled."""
        while True:
            try:
                if self._has_changed or time.monotonic() - self._looked_at >= LOOK_AGAIN_S:
                    await self.examine_due()
            except (RetinueError, OSError) as error:
                _log.warning("exams interrupted", error=str(error))
            await asyncio.sleep(LOOK_S)

    async def examine_due(self) -> int:
        """Examine the agents that are due; returns how many."""
        await self._directory.ensure_fresh()
        now = self._clock()
        self._has_changed, self._looked_at = False, time.monotonic()
        entries: list[Entry] = []
        due: list[Entry] = []
        counts: Counter[ExamStatus] = Counter()
        async for page in self._directory.iterate_pages():
            entries += page
            due += [entry for entry in page if self._is_due(entry, now)]
            counts.update(self._book.count(page))
        self.counts = counts
        if not due:
            return 0
        self._has_changed = True  # the counts, and more may be due
        self._book.keep_only(entries)
        present = {_place(entry) for entry in entries}
        self._pauses = {place: pause for place, pause in self._pauses.items() if place in present}
        waiting = iter(due[:AT_ONCE])
        self._written_at = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(SIDE_BY_SIDE):
                    group.create_task(self._examine_all(waiting))
        finally:
            await self._write()
        return len(due[:AT_ONCE])

    def _note_change(self, change: ListingChange) -> None:
        self._has_changed = True

    async def _examine_all(self, waiting: Iterator[Entry]) -> None:
        for entry in waiting:
            try:
                await self._examine(entry)
            except (RetinueError, OSError) as error:
                _log.warning("agent not examined", agent=entry.name, error=str(error))
                self._pause(entry, AWAY_AGAIN_S, is_repeated=True)
            if time.monotonic() - self._written_at >= WRITE_S:
                await self._write()

    async def _write(self) -> None:
        self._written_at = time.monotonic()
        rows = {**self._book.to_json(), _MONEY: self._examiner.money.to_json()}
        await asyncio.to_thread(_write, self._state, rows)

    def _is_due(self, entry: Entry, now: float) -> bool:
        pause = self._pauses.get(_place(entry))
        return (
            entry.enabled
            and entry.reachable is not False
            and self._book.is_due(entry, now, self._every_s)
            and (pause is None or pause.is_over(digest_of(entry), now))
        )

    def _pause(self, entry: Entry, wait_s: float, *, is_repeated: bool) -> None:
        """Leave an agent alone, twice as long as before if it is the same card that needs repeating."""
        earlier, digest = self._pauses.get(_place(entry)), digest_of(entry)
        if is_repeated and earlier is not None and earlier.is_repeated and earlier.digest == digest:
            wait_s = max(wait_s, 2 * earlier.wait_s)
        self._pauses[_place(entry)] = _Pause(digest, self._clock(), min(wait_s, self._every_s), is_repeated)

    async def _examine(self, entry: Entry) -> None:
        listing = await self._directory.open(entry)
        if listing is None:
            self._pause(entry, AWAY_AGAIN_S, is_repeated=True)
            return
        result = await self._examiner.examine(listing, self._directory.name_of(entry))
        self._book.put(entry, result)
        if result.is_away:
            self._pause(entry, AWAY_AGAIN_S, is_repeated=True)
        else:
            self._pause(entry, APART_S, is_repeated=result.status == "failed")
        if result.status == "failed":
            _log.warning("agent failed its exam", agent=entry.name, problems=list(result.problems))


def _place(entry: Entry) -> tuple[str, str, str]:
    return (entry.source, entry.key, entry.id.tag)


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


def _write(state: State, rows: Mapping[str, object]) -> None:
    try:
        replace_file(state.exams, orjson.dumps(rows), mode=0o600)
    except OSError as error:
        _log.warning("results of exams not stored", path=str(state.exams), error=str(error))
