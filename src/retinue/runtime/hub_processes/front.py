"""Decides which process of a hub answers a request.

A call of an agent that this process can reach by itself is answered here: it needs nothing that is kept
between requests. Everything else goes to the leader. A call that belongs to a chain of calls goes to the
process that counts this chain, which its id names, so that the bounds of a chain hold over all processes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any
from zlib import crc32

import orjson
from starlette.types import ASGIApp, Receive, Scope, Send

from retinue.core.call import new_id
from retinue.mesh.admission import ProcessLimits
from retinue.mesh.directory.directory import MESH_VIEW, Directory
from retinue.mesh.directory.listing_cache import ListingChange
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.entry import Entry
from retinue.runtime.hub_processes.board import Board
from retinue.runtime.hub_processes.forwarding import Forwarder
from retinue.runtime.hub_processes.place import LEADER, HubPlace
from retinue.web.codec.peer_requests import STOPPING
from retinue.web.disconnect import read_body, replay

_EXECUTE = "/execute"
_AGENTS = "/agents/"
_TRACE_ID = b"x-openstarry-trace-id"
_MAX_KNOWN = 10_000
_READ_BYTES = 64 * 1024
"""A call of a skill whose body is longer is not read here; the leader answers it."""


def owner_of(trace_id: bytes, count: int) -> int:
    """The process that counts the calls of a chain."""
    return crc32(trace_id) % count


def own_trace_ids(place: HubPlace) -> Callable[[], str]:
    """Makes the ids of new chains that this process counts."""

    def make() -> str:
        while True:
            trace_id = new_id()
            if owner_of(trace_id.encode(), place.count) == place.index:
                return trace_id

    return make


class Reach:
    """Which calls this process can answer; ``sources`` are those whose agents it calls by their URL.

    With policies no call is answered here, because policies may count. With ``exams_required`` a call that
    names no agent is not, because the leader knows the results of exams.
    """

    def __init__(
        self,
        directory: Directory,
        dispatcher: Dispatcher,
        sources: Collection[str],
        is_current: Callable[[], bool],
        own_skills: Callable[[], Collection[str]],
        *,
        exams_required: bool = False,
    ) -> None:
        self._directory = directory
        self._dispatcher = dispatcher
        self._sources = frozenset(sources)
        self._is_current = is_current
        self._own_skills = own_skills
        self._exams_required = exams_required
        self._known: dict[str, bool] = {}
        directory.subscribe(self._note_change)

    @property
    def limits(self) -> ProcessLimits:
        return self._dispatcher.admission.limits

    def covers_agent(self, name: str) -> bool:
        """Whether every agent of this name is called by its URL."""
        is_peer = self._known.get(name)
        if is_peer is None:
            is_peer = self._known[name] = self._are_peers(self._directory.list_named(name))
            if len(self._known) > _MAX_KNOWN:
                del self._known[next(iter(self._known))]
        return is_peer and self._is_open()

    def covers_skill(self, skill: object) -> bool:
        """Whether every agent with this skill is called by its URL."""
        return (
            self._is_open()
            and not self._exams_required
            and isinstance(skill, str)
            and skill not in self._own_skills()
            and self._are_peers(self._directory.find_by_skill(skill, MESH_VIEW))
        )

    def _note_change(self, change: ListingChange) -> None:
        if not change.measured:
            self._known.pop(change.entry.name, None)

    def _is_open(self) -> bool:
        return self._is_current() and self._dispatcher.check_policies is None

    def _are_peers(self, entries: Collection[Entry]) -> bool:
        return bool(entries) and all(
            entry.url is not None and entry.source in self._sources for entry in entries
        )


class Front:
    """The app at the address of a hub, in one of its processes; ``own`` is the app of this process.

    ``reach`` is None in the leader, which answers everything. ``prefix`` is the path of the advertised URL.
    """

    def __init__(
        self,
        own: ASGIApp,
        reach: Reach | None,
        forwarder: Forwarder,
        place: HubPlace,
        board: Board,
        prefix: str = "",
    ) -> None:
        self._own = own
        self._reach = reach
        self._forwarder = forwarder
        self._place = place
        self._board = board
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of a client."""
        path: str = scope["path"]
        if scope["type"] == "http" and path.endswith(_EXECUTE):
            for name, value in scope["headers"]:
                if name == _TRACE_ID:
                    owner = owner_of(value, self._place.count)
                    if owner != self._place.index and self._board.find_pid(owner) is not None:
                        await self._forwarder.forward(owner, scope, receive, send)
                        return
        await self.answer(scope, receive, send)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request here or by the leader, of whatever chain it is."""
        if self._reach is None or scope["type"] != "http" or scope["path"] == f"{self._prefix}/health":
            await self._own(scope, receive, send)
            return
        if scope["method"] == "POST" and scope["path"].endswith(_EXECUTE):
            path = scope["path"][len(self._prefix) :]
            if path == _EXECUTE:
                await self._answer_skill(scope, receive, send)
                return
            name = path[len(_AGENTS) : -len(_EXECUTE)]
            if path.startswith(_AGENTS) and self._reach.covers_agent(name):
                await self._own(scope, receive, send)
                return
        await self._ask_leader(scope, receive, send)

    async def _answer_skill(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a call that names no agent, after a look at the skill that it names."""
        assert self._reach is not None, "asked by a follower only"
        if _is_short(scope):
            body = await read_body(receive)
            if body is None:
                return
            receive = replay({"type": "http.request", "body": body}, receive)
            if self._reach.covers_skill(_skill_of(body)):
                await self._own(scope, receive, send)
                return
        await self._ask_leader(scope, receive, send)

    async def _ask_leader(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._reach is not None, "asked by a follower only"
        if self._reach.limits.is_stopping:
            # the leader stops at the same time, and may have ended
            headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": STOPPING})
            return
        await self._forwarder.forward(LEADER, scope, receive, send)


def _is_short(scope: Scope) -> bool:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) <= _READ_BYTES
    return False


def _skill_of(body: bytes) -> Any:
    """The skill that a JSON-RPC request names; None for a batch and for anything else."""
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return request.get("method") if isinstance(request, dict) else None
