"""What the leading process of a hub does for the others: it tells changes, and takes their rows and verdicts.

The exchanges are HTTP over the socket of the leader, below `PREFIX`, which no client can reach. Parts of the
leader add their own: news for all processes, and answers to what a process sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from secrets import token_urlsafe
from typing import Any

import orjson
import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from retinue.core.record import ListingKey
from retinue.mcp.server.long_results import LongResults
from retinue.mcp.server.shared_sessions import SESSIONS, SharedSessions
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listing_cache import ListingChange
from retinue.mesh.health.agent_stats import report_health
from retinue.mesh.observing.call_figures import CallFigures, CallSummary
from retinue.mesh.observing.metrics import Figures, Histogram
from retinue.mesh.reading import Change
from retinue.parts.part import Opened, Part, ReadinessProblem
from retinue.parts.process import Process
from retinue.runtime.endpoints.mcp import SharedMcp
from retinue.runtime.hub_processes.board import Board
from retinue.runtime.hub_processes.forwarding import Forwarder, is_forwarded, request_inside
from retinue.runtime.hub_processes.place import HubPlace, own_names
from retinue.runtime.parts.audit import AuditLog
from retinue.web.disconnect import read_body

PREFIX = "/.hub-processes/"
CHANGES_PATH = PREFIX + "changes"
ROWS_PATH = PREFIX + "rows"
HEALTH_PATH = PREFIX + "health"
REREAD_PATH = PREFIX + "reread"
RESULT_PATH = PREFIX + "result"
TOUCH_PATH = PREFIX + "touch"
FIGURES_PATH = PREFIX + "figures"

_FIGURES_WITHIN_S = 2.0
_ALL = orjson.dumps({"ok": True})
_IN_FLIGHT = "retinue_calls_in_flight"
_PROCESS_UP = "retinue_hub_process_up"

_log = structlog.get_logger("retinue.processes")


Answer = Callable[[Any], Awaitable[Any]]
"""Answers what another process sends: JSON for JSON."""

SKILLS = "skills"
"""In the first line only, after which a process reads the whole directory."""

OWN_SKILLS = "own skills"


class _Untold:
    """What one process has not been told yet: the listings that have changed, and other news."""

    def __init__(self) -> None:
        self.keys: set[ListingKey] = set()
        self.news: list[Mapping[str, Any]] = []
        self.wake = asyncio.Event()

    def take(self) -> list[Mapping[str, Any]]:
        """The lines that tell it."""
        keys, news = self.keys, self.news
        self.keys, self.news = set(), []
        self.wake.clear()
        return [*([{"changed": [list(key) for key in sorted(keys)]}] if keys else ()), *news]


class LeaderExchange:
    """The exchanges of the leader with the other processes, as an ASGI app.

    ``answers`` are what other parts answer, by path. ``state_now`` gives what a process must know when it
    begins to follow, by name; `tell` tells what is new.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._directory = process.get(Directory)
        self._followers: set[_Untold] = set()
        self._directory.subscribe(self._note)
        self.state_now: dict[str, Callable[[], Any]] = {SKILLS: self._list_skills}
        self.answers: dict[str, Answer] = {
            HEALTH_PATH: self._take_health,
            REREAD_PATH: self._reread,
        }
        self._loop = asyncio.get_running_loop()
        process.agent.changes.subscribe(self._own_changed)

    def tell(self, name: str, news: Any) -> None:
        """Tell all processes a piece of news under a name, in the order of the calls."""
        for untold in self._followers:
            untold.news.append({name: news})
            untold.wake.set()

    def _note(self, change: ListingChange) -> None:
        for untold in self._followers:
            untold.keys.add(change.entry.id)
            untold.wake.set()

    def _own_changed(self, change: Change) -> None:
        if change.kind == "tools" and self._followers:
            self._loop.call_soon_threadsafe(lambda: self.tell(OWN_SKILLS, self._list_skills()))

    def _list_skills(self) -> list[str]:
        return sorted(skill.id for skill in self._process.agent.record().skills)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == CHANGES_PATH:
            await self._tell_changes(receive, send)
            return
        body = await read_body(receive)
        if body is None:
            return
        answer = _ALL
        if path == ROWS_PATH:
            self._take_rows(*body.split(b"\n"))
        else:
            answer = orjson.dumps(await self.answers[path](orjson.loads(body)))
        await send_json(send, answer)

    async def _tell_changes(self, receive: Receive, send: Send) -> None:
        """Tell a process which listings have changed, from now on; the first line is the state now."""
        untold = _Untold()
        self._followers.add(untold)
        gone = asyncio.create_task(_wait_for_end(receive))
        gone.add_done_callback(lambda _: untold.wake.set())
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await _send_line(send, {name: read() for name, read in self.state_now.items()})
            while True:
                await untold.wake.wait()
                if gone.done():
                    return
                for line in untold.take():
                    await _send_line(send, line)
        finally:
            gone.cancel()
            self._followers.discard(untold)

    def end(self) -> None:
        """Tell nothing more, because the process ends."""
        self._followers.clear()

    def _take_rows(self, sums: bytes, *rows: bytes) -> None:
        """Record the audit rows of another process, and count its calls by their sums."""
        log = self._process.find(AuditLog)
        if log is not None:
            for row in rows:
                log.append_rendered(row)
        self._process.get(CallFigures).seed(CallSummary(*summary) for summary in orjson.loads(sums))

    async def _take_health(self, verdict: Mapping[str, Any]) -> bool:
        """Take what the calls of another process have shown of an agent, as if they were probes."""
        entry = self._directory.find_entry(ListingKey(*verdict["key"]))
        if entry is None:
            return False
        stats = self._process.dispatcher.agent_stats.of(entry)
        if verdict["health"] == "healthy":
            stats.probe_answered()
        else:
            stats.probe_failed(verdict["reason"], certain=verdict["health"] == "unreachable")
        report_health(stats, entry, self._process.dispatcher.health_sink or self._directory.record_health)
        return True

    async def _reread(self, place: Mapping[str, str]) -> list[str]:
        """Read a key again from its source; the tags that are listed then."""
        source, key = place["source"], place["key"]
        await self._directory.reread_key(source, key)
        return [entry.id.tag for entry in self._directory.list_tags(source, key)]


class LeaderPart(Part):
    """Leads the processes of a hub: sums their figures, and names in ``/ready`` one that does not serve."""

    name = "hub-processes"
    kinds = frozenset({"hub"})
    gives = LeaderExchange
    is_required = True

    def __init__(self, place: HubPlace, board: Board) -> None:
        self._place = place
        self._board = board

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        exchange = LeaderExchange(process)
        _share_mcp(process, exchange, self._place)
        forwarder = Forwarder(self._place)
        others = range(1, self._place.count)
        readings = OtherFigures(self._board)

        async def figures(figures: Figures) -> None:
            figures.put(_PROCESS_UP, 1, "0")
            serving = [index for index in others if self._board.find_pid(index) is not None]
            await asyncio.gather(*(readings.read(forwarder, index) for index in serving))
            for index in others:
                figures.put(_PROCESS_UP, float(index in serving), str(index))
            readings.add_to(figures, serving)

        async def problems() -> Sequence[ReadinessProblem]:
            return [
                ReadinessProblem("hub process", str(index), "not running", is_fatal=False)
                for index in others
                if self._board.find_pid(index) is None
            ]

        try:
            yield Opened(product=exchange, figures=figures, problems=problems, drain=exchange.end)
        finally:
            await forwarder.aclose()


def _share_mcp(process: Process, exchange: LeaderExchange, place: HubPlace) -> None:
    """Let the other processes answer calls in the MCP sessions of the leader."""
    sessions = SharedSessions(exchange.tell)
    process.add(SharedMcp, SharedMcp(make_state=own_names(place, token_urlsafe), sessions=sessions))
    exchange.state_now[SESSIONS] = sessions.list_open

    async def touch(used: Sequence[str]) -> bool:
        for session_id in used:
            sessions.touch(session_id)
        return True

    async def keep_result(result: Sequence[Any]) -> bool:
        process.get(LongResults).take(*result)
        return True

    exchange.answers |= {TOUCH_PATH: touch, RESULT_PATH: keep_result}


class OtherFigures:
    """The figures of the other processes, with the last ones of those that have ended.

    Without the latter a sum would fall when a process is started again, and a counter never falls.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._readings: dict[int, Mapping[str, Any]] = {}

    async def read(self, forwarder: Forwarder, index: int) -> None:
        """Read the figures of a process; the last ones stay where it does not answer."""
        pid = self._board.find_pid(index)
        try:
            reading: Mapping[str, Any] = await request_inside(
                forwarder.session(index), "GET", FIGURES_PATH, timeout_s=_FIGURES_WITHIN_S
            )
        except (OSError, TimeoutError) as error:
            _log.warning("figures of a process are missing", number=index, problem=str(error))
            return
        if pid is not None:
            self._readings[pid] = reading

    def add_to(self, figures: Figures, serving: Collection[int]) -> None:
        """Add what was read to the figures of this process; only those ``serving`` have calls in flight."""
        pids = {self._board.find_pid(index) for index in serving}
        for pid, reading in self._readings.items():
            add_figures(figures, reading)
            if pid in pids:
                in_flight = figures.values.setdefault(_IN_FLIGHT, {})
                in_flight[()] = in_flight.get((), 0) + reading["in_flight"]


def render_figures(figures: Figures, in_flight: int) -> bytes:
    """The counters and histograms of a process as JSON; `add_figures` adds them to those of another."""
    values = {
        name: [[*labels, value] for labels, value in rows.items()]
        for name, rows in figures.values.items()
        if figures.metrics[name].kind == "counter"
    }
    histograms = {
        name: [[*labels, histogram.counts, histogram.total] for labels, histogram in rows.items()]
        for name, rows in figures.histograms.items()
    }
    return orjson.dumps({"values": values, "histograms": histograms, "in_flight": in_flight})


def add_figures(figures: Figures, reading: Mapping[str, Any]) -> None:
    """Add what `render_figures` has rendered in another process."""
    for name, rows in reading["values"].items():
        values = figures.values.setdefault(name, {})
        for *labels, value in rows:
            values[tuple(labels)] = values.get(tuple(labels), 0) + value
    for name, rows in reading["histograms"].items():
        histograms = figures.histograms.setdefault(name, {})
        for *labels, counts, total in rows:
            other = Histogram()
            other.counts, other.total = counts, total
            histograms.setdefault(tuple(labels), Histogram()).add(other)


def inner_app(exchange: ASGIApp, app: ASGIApp) -> ASGIApp:
    """The app at the socket of a process: its exchanges with the other processes, and forwarded requests.

    A forwarded request comes from a client, whatever its path is, so it never reaches the exchange.
    """

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        is_exchange = scope["type"] == "http" and scope["path"].startswith(PREFIX) and not is_forwarded(scope)
        await (exchange if is_exchange else app)(scope, receive, send)

    return route


async def send_json(send: Send, body: bytes) -> None:
    """Answer with a whole JSON body."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send_line(send: Send, value: Any) -> None:
    await send({"type": "http.response.body", "body": orjson.dumps(value) + b"\n", "more_body": True})


async def _wait_for_end(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
