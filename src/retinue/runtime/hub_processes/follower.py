"""How a process of a hub follows its leader: the directory, the health of agents, and its own audit rows.

The leader reads the sources and writes the listings into the state. A follower keeps the same entries in
memory, reads cards from the state, and applies each change that the leader tells it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NamedTuple, TypeVar

import aiohttp
import orjson
import structlog

from retinue.core.errors import RegistryUnreachableError, RemoteFaultError, StateError
from retinue.core.record import HUB_NAME, Candidate, Health, Listing, ListingKey
from retinue.core.remote_faults import rebuild_error
from retinue.core.trust import Trust
from retinue.mcp.server.shared_sessions import FollowedSessions
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.sources import Give, Reading, Source, SourceProblem
from retinue.mesh.health.agent_stats import AgentStatsTable
from retinue.mesh.history.search_history import EndedCall
from retinue.mesh.slices import run_in_slices
from retinue.policies.decision_figures import DecisionFigures
from retinue.runtime.hub_processes.forwarding import read_inside, render_inside, request_inside
from retinue.runtime.hub_processes.leader import (
    BREAKER,
    CHANGES_PATH,
    HEALTH_PATH,
    INPUTS_PATH,
    OWN_SKILLS,
    REREAD_PATH,
    RESULT_PATH,
    ROWS_PATH,
    SKILLS,
    TOUCH_PATH,
)
from retinue.runtime.hub_processes.led_history import LedHistory
from retinue.storage.audit_store import render_inputs, render_row
from retinue.storage.listing_store import SqliteListings

RETRY_S = 0.1
"""Seconds between two attempts to reach a leader that has ended."""

EXCHANGE_WITHIN_S = 10.0
ROWS_AFTER_S = 0.2
ROWS_AT_ONCE = 500
ROWS_KEPT = 10_000
"""Rows that wait for a leader that has ended; beyond that the oldest are dropped."""

TOUCH_EVERY_S = 10.0

_T = TypeVar("_T")

_log = structlog.get_logger("retinue.processes")


class FollowedSource(Source):
    """A source that the leader reads; this process knows what the leader has stored of it."""

    def __init__(self, name: str, trust: Trust, leader: Leader, store: SqliteListings) -> None:
        self.name = name
        self.trust = trust
        self._leader = leader
        self._store = store

    async def read_all(self, give: Give | None = None, *, thorough: bool = True) -> Reading:
        # a problem of the whole source keeps every listing of it as it is
        return Reading((), (SourceProblem(self.name, None, self._is_followed()),))

    async def read_key(self, key: str) -> Sequence[Listing]:
        """Let the leader read the key again, and take what it has stored."""
        try:
            tags = await self._leader.reread(self.name, key)
        except (OSError, TimeoutError):
            raise self._is_followed() from None
        return self._store.find_all([ListingKey(self.name, key, tag) for tag in tags])

    def _is_followed(self) -> RegistryUnreachableError:
        return RegistryUnreachableError(self.name, "the leading process of the hub reads it")


class _Row(NamedTuple):
    """An audit row; ``counted`` is agent, status and error of a call that the figures count."""

    rendered: bytes
    counted: tuple[str, str, str | None] | None
    duration_ms: float


def _render_rows(rows: Sequence[_Row], decisions: Sequence[Any], ended: Sequence[EndedCall]) -> bytes:
    """The sums of the calls, the decisions of policies and what the history keeps of the calls in one line.

    Each row follows in a line of its own.
    """
    sums: dict[tuple[str, str, str | None], list[float]] = {}
    for row in rows:
        if row.counted is not None:
            calls = sums.setdefault(row.counted, [0, 0.0])
            calls[0] += 1
            calls[1] += row.duration_ms
    totals = [[*counted, *calls] for counted, calls in sums.items()]
    head = orjson.dumps([totals, decisions, [list(call) for call in ended]])
    return b"\n".join([head, *(row.rendered for row in rows)])


@contextmanager
def _taken(figures: DecisionFigures | None) -> Iterator[Sequence[Any]]:
    """The decisions to send; they are counted here again if they cannot be sent."""
    decisions = [] if figures is None else figures.take()
    try:
        yield decisions
    except BaseException:
        if figures is not None:
            figures.add(decisions)
        raise


@contextmanager
def _some_of(waiting: deque[_T]) -> Iterator[Sequence[_T]]:
    """The oldest elements, taken out to be sent; they wait again if they cannot be sent.

    They are taken out first, because a full deque drops its oldest elements while they are sent.
    """
    elements = [waiting.popleft() for _ in range(min(ROWS_AT_ONCE, len(waiting)))]
    try:
        yield elements
    except BaseException:
        newer = list(waiting)
        waiting.clear()
        waiting.extend((*elements, *newer))
        raise


class Leader:
    """The exchanges of a follower with its leader, over ``session``."""

    def __init__(self, session: Callable[[], aiohttp.ClientSession]) -> None:
        self._session = session
        self._rows: deque[_Row] = deque(maxlen=ROWS_KEPT)
        self._inputs: deque[str] = deque(maxlen=ROWS_KEPT)
        self.find_decisions: Callable[[], DecisionFigures | None] = lambda: None
        """Finds the decisions of policies that the leader does not count yet."""
        self.history: LedHistory | None = None
        """The ended calls that the history of the leader does not know yet."""
        self._verdicts: dict[ListingKey, Mapping[str, Any]] = {}
        self._wake = asyncio.Event()

    def append_row(self, row: Mapping[str, Any]) -> None:
        """Have a row recorded by the leader, within `ROWS_AFTER_S` while it serves."""
        counted = None
        if row.get("type") == "CALL:ENDED" and row.get("agent"):
            counted = (row["agent"], row["status"], row.get("error"))
        self._rows.append(_Row(render_row(row), counted, row.get("duration_ms", 0.0)))
        self._wake.set()

    def note_health(self, candidate: Candidate, health: Health, reason: str, *, is_open: bool) -> None:
        """Tell the leader what calls have shown of an agent, and whether its circuit breaker is open."""
        verdict = {"key": list(candidate.id), "health": health, "reason": reason, "is_open": is_open}
        self._verdicts[candidate.id] = verdict
        self._wake.set()

    async def reread(self, source: str, key: str) -> list[str]:
        """Let the leader read one key from its source; the tags that it lists then. Raises OSError."""
        value = {"source": source, "key": key}
        tags: list[str] = await self.ask(REREAD_PATH, value)
        return tags

    def append_inputs(self, row: Mapping[str, Any]) -> None:
        """Have the leader keep what policies have read of a call."""
        self._inputs.append(render_inputs(row).decode())
        self._wake.set()

    async def ask(self, path: str, value: Any) -> Any:
        """The answer of the leader to ``value``; asks once more if that one has ended meanwhile.

        Raises OSError, TimeoutError and the RetinueError that the leader answers.
        """
        try:
            reply = await self._exchange(path, value)
        except OSError:
            reply = await self._exchange(path, value)
        if (error := reply.get("error")) is not None:
            raise rebuild_error(RemoteFaultError(HUB_NAME, *error))
        return reply.get("result")

    async def send_result(self, result: Sequence[Any]) -> None:
        """Give the leader a long result, which a client may read there."""
        try:
            await self._exchange(RESULT_PATH, result)
        except (OSError, TimeoutError) as error:
            _log.warning("a long result is lost", problem=str(error))

    async def touch_sessions(self, sessions: FollowedSessions) -> None:
        """Keep the sessions from becoming idle in which this process answers calls, until cancelled."""
        while True:
            await asyncio.sleep(TOUCH_EVERY_S)
            if used := sessions.take_used():
                with suppress(OSError, TimeoutError):
                    await self._exchange(TOUCH_PATH, used)

    async def send_notes(self) -> None:
        """Send rows and verdicts until cancelled; those that were not taken are sent again."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(ROWS_AFTER_S)
            await self.flush()

    async def flush(self) -> None:
        """Send what waits; returns when the leader has it, or cannot be reached."""
        try:
            while self._verdicts:
                key, verdict = next(iter(self._verdicts.items()))
                await self._exchange(HEALTH_PATH, verdict)
                if self._verdicts[key] is verdict:  # calls may have shown something else meanwhile
                    del self._verdicts[key]
            while self._rows or self.history:
                history = nullcontext(()) if self.history is None else self.history.taken()
                decisions_taken = _taken(self.find_decisions())
                with _some_of(self._rows) as rows, decisions_taken as decisions, history as ended:
                    await self._send(ROWS_PATH, _render_rows(rows, decisions, ended))
            while self._inputs:
                with _some_of(self._inputs) as inputs:
                    await self._exchange(INPUTS_PATH, inputs)
        except (OSError, TimeoutError) as error:
            _log.warning("the leading process does not answer", problem=str(error))
            self._wake.set()

    async def _exchange(self, path: str, value: Any) -> Any:
        return await self._send(path, render_inside(value))

    async def _send(self, path: str, body: bytes) -> Any:
        return await request_inside(self._session(), "POST", path, body, timeout_s=EXCHANGE_WITHIN_S)


async def _read_lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The lines of a stream; they may be longer than aiohttp permits, such as that of all sessions."""
    pieces: list[bytes] = []
    async for piece in content.iter_any():
        first, *others = piece.split(b"\n")
        pieces.append(first)
        for line in others:
            yield b"".join(pieces)
            pieces = [line]


class DirectoryFollower:
    """Keeps the directory of this process as the leader has stored it; `run` follows until cancelled."""

    def __init__(
        self,
        directory: Directory,
        store: SqliteListings,
        agent_stats: AgentStatsTable,
        session: Callable[[], aiohttp.ClientSession],
    ) -> None:
        self._directory = directory
        self._store = store
        self._agent_stats = agent_stats
        self._session = session
        self.is_current = asyncio.Event()
        """Set once the directory was as the leader has it; it stays so while a new leader starts."""
        self.own_skills: Mapping[str, bool] = {}
        """The skills of the hub itself, which the leader runs, and whether a call of each may be repeated."""
        self.on_news: dict[str, Callable[[Any], None]] = {
            OWN_SKILLS: self._take_own_skills,
            BREAKER: self._open_breaker,
        }
        """What takes each kind of news other than that of listings."""

    async def run(self) -> None:
        """Follow the leader, and the next one when it ends."""
        while True:
            try:
                await self._follow()
            except (aiohttp.ClientError, OSError, StateError) as error:
                _log.info("the leading process is gone", problem=str(error))
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> None:
        async with self._session().get(f"http://hub{CHANGES_PATH}") as changes:
            async for line in _read_lines(changes.content):
                news = read_inside(line)
                for name, value in news.items():
                    if (take := self.on_news.get(name)) is not None:
                        take(value)
                if (skills := news.get(SKILLS)) is not None:
                    self._take_own_skills(skills)
                    await self.read_all()
                    self.is_current.set()
                elif (changed := news.get("changed")) is not None:
                    await self._apply([ListingKey(*key) for key in changed])

    def _open_breaker(self, opened: Sequence[Any]) -> None:
        key, reason = opened
        if (entry := self._directory.find_entry(ListingKey(*key))) is not None:
            self._agent_stats.of(entry).breaker.open(reason)

    def _take_own_skills(self, skills: Mapping[str, bool]) -> None:
        self.own_skills = skills

    async def read_all(self) -> None:
        """Make the directory as the state has it, because changes may have been missed."""
        stored: set[ListingKey] = set()
        changed: list[ListingKey] = []

        def compare() -> Iterator[None]:
            for entry in self._store.load():
                known = self._directory.find_entry(entry.id)
                # a hundred thousand new ids would have to be collected, and deleted at once
                stored.add(entry.id if known is None else known.id)
                if entry != known:
                    changed.append(entry.id)
                yield
            for entry in list(self._directory.list_held()):
                if entry.id not in stored:
                    changed.append(entry.id)
                yield

        await run_in_slices(compare())
        await self._apply(changed)

    async def _apply(self, keys: Sequence[ListingKey]) -> None:
        def take() -> Iterator[None]:
            for key in keys:
                listing = self._store.find(key)
                if listing is None:
                    self._directory.remove(key)
                else:
                    self._take(listing)
                yield

        await run_in_slices(take())

    def _take(self, listing: Listing) -> None:
        before = self._directory.find_entry(listing.id)
        entry = self._directory.follow(listing)
        if entry.health == "healthy" and before is not None and before.health != "healthy":
            self._agent_stats.of(entry).probe_answered()


def list_followed(sources: Iterable[Source], leader: Leader, store: SqliteListings) -> list[FollowedSource]:
    """The sources of the leader, as a follower has them."""
    return [FollowedSource(source.name, source.trust, leader, store) for source in sources]
