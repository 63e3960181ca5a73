"""Decides which process of a hub answers a request.

A call of an agent that this process can reach by itself is answered here: it needs nothing that is kept
between requests, or only what this process has of it. Everything else goes to the leader. A request that
names what one process has goes there first: a chain of calls is counted by the process that its id names, so
that the bounds of a chain hold over all processes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping
from functools import partial
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from retinue.core.record import HUB_NAME
from retinue.hub.agents import RELAYS
from retinue.mcp.codec.tools import AGENT_MARK, list_agents_of
from retinue.mesh.admission import ProcessLimits
from retinue.mesh.directory.directory import MESH_VIEW, Directory
from retinue.mesh.directory.listing_cache import ListingChange
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.entry import Entry
from retinue.runtime.hub_processes.board import Board
from retinue.runtime.hub_processes.forwarding import Forwarder
from retinue.runtime.hub_processes.place import LEADER, HubPlace, owner_of
from retinue.runtime.hub_processes.request_head import (
    RequestHead,
    changes_nothing,
    find_message_id,
    find_name,
    find_tool,
    read_head,
    read_request,
)
from retinue.web.codec.peer_requests import STOPPING
from retinue.web.disconnect import read_body, replay

_MAX_KNOWN = 10_000
_MARKS = (AGENT_MARK, ".")
_RESULT = "result:"
_KEY = b"idempotency-key"
_ENVELOPE = b'"performative"'


class Reach:
    """Which calls this process can answer; ``sources`` are those whose agents it calls by their URL.

    No call is answered here until ``is_current``: directory and policies are those of the leader. With
    ``exams_required`` a call that names no agent is not, because the leader knows the results of exams.
    ``sessions`` are those of MCP in which calls are answered here. While policies may ask a person, which
    ``asks_people`` tells, the leader answers A2A, where tasks wait for the person.
    """

    def __init__(
        self,
        directory: Directory,
        dispatcher: Dispatcher,
        sources: Collection[str],
        is_current: Callable[[], bool],
        own_skills: Callable[[], Mapping[str, bool]],
        *,
        exams_required: bool = False,
        sessions: Container[str] = (),
        asks_people: Callable[[], bool] = lambda: False,
    ) -> None:
        self._asks_people = asks_people
        self._directory = directory
        self._dispatcher = dispatcher
        self._sources = frozenset(sources)
        self._is_current = is_current
        self._own_skills = own_skills
        self._exams_required = exams_required
        self._sessions = sessions
        self._known: dict[str, bool] = {}
        self._known_tools: dict[str, bool] = {}
        directory.subscribe(self._note_change)

    @property
    def limits(self) -> ProcessLimits:
        return self._dispatcher.admission.limits

    def covers(self, head: RequestHead, body: bytes | None) -> bool:
        """Whether a request is answered here; ``body`` None = too long to be read."""
        if not self._is_open():
            return False
        if head.protocol == "execute":
            if head.agent is not None:
                return self.covers_agent(head.agent)
            return body is not None and self._covers_execute(head, read_request(body))
        if body is None:
            return False
        if head.protocol == "a2a":
            return self._covers_a2a(head, body)
        return self._covers_mcp(head, body)

    def covers_agent(self, name: str) -> bool:
        """Whether every agent of this name is called by its URL."""
        is_peer = self._known.get(name)
        if is_peer is None:
            is_peer = self._known[name] = self._are_peers(self._directory.list_named(name))
            if len(self._known) > _MAX_KNOWN:
                del self._known[next(iter(self._known))]
        return is_peer

    def covers_skill(self, skill: object) -> bool:
        """Whether every agent with this skill is called by its URL."""
        return (
            not self._exams_required
            and isinstance(skill, str)
            and skill not in self._own_skills()
            and self._are_peers(self._directory.find_by_skill(skill, MESH_VIEW))
        )

    def covers_tool(self, name: object) -> bool:
        """Whether a tool of the hub's list is a skill of an agent that is called by its URL."""
        if not isinstance(name, str) or name in self._own_skills():
            return False
        is_covered = self._known_tools.get(name)
        if is_covered is None:
            named = [agent for agent in _agents_in(name) if self._directory.list_named(agent)]
            is_covered = bool(named) and all(map(self.covers_agent, named))
            self._known_tools[name] = is_covered
            if len(self._known_tools) > _MAX_KNOWN:
                del self._known_tools[next(iter(self._known_tools))]
        return is_covered

    def covers_relay(self, name: object, arguments: object) -> bool:
        """Whether a skill of the hub hands a call on to agents that are called by their URL."""
        if name not in RELAYS or not isinstance(arguments, dict):
            return False
        agent = arguments.get("agent")
        if not agent:
            return self.covers_skill(arguments.get("skill"))
        return isinstance(agent, str) and self.covers_agent(agent.partition("@")[0])

    def may_repeat(self, head: RequestHead | None, body: bytes | None) -> bool:
        """Whether a request to the leader may be sent again to the next one, because it changes nothing."""
        if head is None or body is None:
            return False
        if head.protocol == "execute" and head.agent in (None, HUB_NAME):
            return self._own_skills().get(str(read_request(body).get("method")), False)
        if head.protocol != "mcp":
            return False
        tool = find_tool(body)
        return changes_nothing(body) if tool is None else self._own_skills().get(tool, False)

    def _covers_execute(self, head: RequestHead, request: Mapping[str, Any]) -> bool:
        """Whether a call that names no agent is answered here."""
        method = request.get("method")
        if method not in RELAYS:
            return self.covers_skill(method)
        # the leader keeps the outcomes of the skills of the hub by their keys
        return _KEY not in head.headers and self.covers_relay(method, request.get("params"))

    def _covers_mcp(self, head: RequestHead, body: bytes) -> bool:
        request = read_request(body)
        params = request.get("params")
        params = params if isinstance(params, dict) else {}
        if head.agent is None:
            is_known = head.is_sessionless or head.session in self._sessions
            if not is_known or request.get("method") != "tools/call":
                return False
            name = params.get("name")
            return self.covers_tool(name) or self.covers_relay(name, params.get("arguments"))
        # the leader has the sessions of agents, and the long results of all processes
        is_kept = str(params.get("uri", "")).startswith(_RESULT)
        return head.is_sessionless and not is_kept and self.covers_agent(head.agent)

    def _covers_a2a(self, head: RequestHead, body: bytes) -> bool:
        # the leader has the messages of envelopes, and the tasks in which persons are asked
        is_led = _ENVELOPE in body or self._asks_people()
        return head.agent is not None and not is_led and self.covers_agent(head.agent)

    def _note_change(self, change: ListingChange) -> None:
        if not change.measured:
            self._known.pop(change.entry.name, None)
            self._known_tools.clear()

    def _is_open(self) -> bool:
        return self._is_current()

    def _are_peers(self, entries: Collection[Entry]) -> bool:
        return bool(entries) and all(
            entry.url is not None and entry.source in self._sources for entry in entries
        )


def _agents_in(tool: str) -> Iterator[str]:
    """The names of agents that a tool of a hub may mean, without their versions."""
    for mark in _MARKS:
        at = tool.find(mark)
        while at > 0:
            for agent in list_agents_of(tool[:at]):
                yield agent.partition("@")[0]
            at = tool.find(mark, at + 1)


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
        """Answer a request of a client, or let the process answer that has what it names."""
        head = self._read(scope)
        if head is None:
            await self._answer(None, None, scope, receive, send)
            return
        body: bytes | None = None
        if head.is_short and head.needs_body and (self._reach is not None or head.protocol != "execute"):
            body = await read_body(receive)
            if body is None:
                return
            receive = replay({"type": "http.request", "body": body}, receive)
        owner = self._find_owner(head, body)
        if owner != self._place.index and self._board.find_pid(owner) is not None:
            await self._forwarder.forward(owner, scope, receive, send)
            return
        await self._answer(head, body, scope, receive, send)

    def _find_owner(self, head: RequestHead, body: bytes | None) -> int:
        """The process that has what the request names, or that has had the same message before."""
        name = find_name(head, body)
        if name is not None:
            return owner_of(name, self._place.count)
        message_id = find_message_id(body) if head.protocol == "a2a" else None
        if message_id is None:
            return self._place.index
        sender = head.headers.get(b"authorization", b"").decode("latin-1")
        return self._board.claim(f"{head.agent}\n{sender}\n{message_id}")

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request here or by the leader, whatever it names."""
        head = None if self._reach is None else self._read(scope)
        body: bytes | None = None
        if head is not None and head.is_short and head.needs_body:
            body = await read_body(receive)
            if body is None:
                return
            receive = replay({"type": "http.request", "body": body}, receive)
        await self._answer(head, body, scope, receive, send)

    def _read(self, scope: Scope) -> RequestHead | None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return None
        path: str = scope["path"]
        return (
            read_head(path[len(self._prefix) :], scope["headers"]) if path.startswith(self._prefix) else None
        )

    async def _answer(
        self, head: RequestHead | None, body: bytes | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        reach = self._reach
        is_here = reach is None or scope["type"] != "http" or scope["path"] == f"{self._prefix}/health"
        if is_here or (reach is not None and head is not None and reach.covers(head, body)):
            await self._own(scope, receive, send)
        else:
            await self._ask_leader(head, body, scope, receive, send)

    async def _ask_leader(
        self, head: RequestHead | None, body: bytes | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Let the leader answer a request."""
        assert self._reach is not None, "asked by a follower only"
        if self._reach.limits.is_stopping:
            # the leader stops at the same time, and may have ended
            headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": STOPPING})
            return
        may_repeat = partial(self._reach.may_repeat, head, body)
        await self._forwarder.forward(LEADER, scope, receive, send, may_repeat=may_repeat)
