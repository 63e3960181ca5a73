"""What the leading process of a hub does for the others: it tells changes, and takes their rows and verdicts.

The exchanges are HTTP over the socket of the leader, below `PREFIX`, which no client can reach. Parts of the
leader add their own: news for all processes, and answers to what a process sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from starlette.types import ASGIApp, Receive, Scope, Send

from retinue.core.errors import RetinueError
from retinue.core.record import Candidate, Health, ListingKey
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listing_cache import ListingChange
from retinue.mesh.health.agent_stats import report_health
from retinue.mesh.history.search_history import EndedCall, SearchHistory
from retinue.mesh.observing.call_figures import CallFigures, CallSummary
from retinue.mesh.reading import Change
from retinue.parts.process import Process
from retinue.runtime.hub_processes.forwarding import is_forwarded, read_inside, render_inside
from retinue.runtime.parts.audit import AuditLog
from retinue.runtime.parts.policies import LoadedPolicies
from retinue.web.disconnect import read_body
from retinue.web.error_table import execute_fault

PREFIX = "/.hub-processes/"
CHANGES_PATH = PREFIX + "changes"
ROWS_PATH = PREFIX + "rows"
HEALTH_PATH = PREFIX + "health"
REREAD_PATH = PREFIX + "reread"
RESULT_PATH = PREFIX + "result"
COUNTS_PATH = PREFIX + "counts"
APPROVALS_PATH = PREFIX + "approvals"
INPUTS_PATH = PREFIX + "inputs"
TOUCH_PATH = PREFIX + "touch"
FIGURES_PATH = PREFIX + "figures"

_ALL = orjson.dumps({"ok": True})


Answer = Callable[[Any], Awaitable[Any]]
"""Answers what another process sends: JSON for JSON."""

SKILLS = "skills"
"""In the first line only, after which a process reads the whole directory."""

OWN_SKILLS = "own skills"
POLICIES = "policies"
BREAKER = "breaker opened"
SEARCHES = "searches are followed"


MAX_UNTOLD = 10_000
"""News that wait for a process that is stopped; with more of them it begins anew when it goes on."""


class _Untold:
    """What one process has not been told yet: the listings that have changed, and other news.

    ``is_behind`` = there were more news than are kept, so that the process must ask for the whole state.
    """

    def __init__(self) -> None:
        self.keys: set[ListingKey] = set()
        self.news: list[Mapping[str, Any]] = []
        self.is_behind = False
        self.wake = asyncio.Event()

    def add(self, news: Mapping[str, Any]) -> None:
        """Keep a piece of news until the process is told."""
        if self.is_behind or len(self.news) >= MAX_UNTOLD:
            self.is_behind, self.news = True, []
        else:
            self.news.append(news)
        self.wake.set()

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
        self._record_health = process.dispatcher.health_sink or self._directory.record_health
        process.dispatcher.health_sink = self._note_health

    def tell(self, name: str, news: Any) -> None:
        """Tell all processes a piece of news under a name, in the order of the calls."""
        for untold in self._followers:
            untold.add({name: news})

    def _note(self, change: ListingChange) -> None:
        for untold in self._followers:
            untold.keys.add(change.entry.id)
            untold.wake.set()

    def _note_health(self, candidate: Candidate, health: Health, reason: str) -> None:
        """Record what calls have shown of an agent; if its breaker is open, it opens in all processes."""
        self._record_health(candidate, health, reason)
        if self._process.dispatcher.agent_stats.of(candidate).is_broken:
            self.tell(BREAKER, [list(candidate.id), reason])

    def _own_changed(self, change: Change) -> None:
        if change.kind == "tools" and self._followers:
            self._loop.call_soon_threadsafe(lambda: self.tell(OWN_SKILLS, self._list_skills()))

    def _list_skills(self) -> Mapping[str, bool]:
        """The skills of the hub itself, and whether a call of each may be repeated."""
        return {skill.id: skill.is_repeatable for skill in self._process.agent.record().skills}

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
            try:
                answer = render_inside({"result": await self.answers[path](read_inside(body))})
            except RetinueError as error:
                answer = orjson.dumps({"error": execute_fault(error)})
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
                if untold.is_behind:
                    await send({"type": "http.response.body", "body": b""})
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
        calls, decisions, ended = orjson.loads(sums)
        self._process.get(CallFigures).seed(CallSummary(*summary) for summary in calls)
        if ended and (history := self._process.find(SearchHistory)) is not None:
            for call in ended:
                history.keep(EndedCall(*call))
        loaded = self._process.find(LoadedPolicies)
        if loaded is not None and loaded.figures is not None:
            loaded.figures.add(decisions)

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
            if verdict["is_open"]:
                stats.breaker.open(verdict["reason"])
        report_health(stats, entry, self._note_health)
        return True

    async def _reread(self, place: Mapping[str, str]) -> list[str]:
        """Read a key again from its source; the tags that are listed then."""
        source, key = place["source"], place["key"]
        await self._directory.reread_key(source, key)
        return [entry.id.tag for entry in self._directory.list_tags(source, key)]


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
