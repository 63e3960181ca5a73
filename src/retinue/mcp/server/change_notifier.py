"""Notifies connected clients of a changed list or resource, if they may see it.

Clients with sessions get ``list_changed`` and updates over their connection, clients of 2026-07-28 over
their ``subscriptions/listen`` streams.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

import anyio.lowlevel
import mcp_types as types
import orjson
import structlog
from mcp.server.connection import Connection
from mcp.server.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params

from retinue.core.call import Principal
from retinue.core.errors import RetinueError
from retinue.core.record import Prompt, Resource
from retinue.core.uri_template import fits_template, is_template
from retinue.mcp.server.channel import Context, current_principal, is_modern, principal_of
from retinue.mcp.server.offer import Offer
from retinue.mcp.server.sdk_internals import connection_of
from retinue.mesh.permissions import principal_key
from retinue.mesh.reading import Change

if TYPE_CHECKING:
    from retinue.mcp.server.shared_sessions import SharedSessions
    from retinue.mcp.session_records import SessionRecords

SEND_TIMEOUT_S = 10.0
"""A client that does not read a notification for this time gets no more of them."""


DEFAULT_LEVEL = "info"


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None, "a call runs in a task"
    return task


@dataclass(slots=True)
class RunningCall:
    """A call of a session on the fast path, in the task that made this; ``ended_by`` is who cancelled it."""

    ended_by: Literal["", "client", "session"] = ""
    task: asyncio.Task[Any] = field(default_factory=_current_task)

    def end(self, by: Literal["client", "session"]) -> None:
        """Cancel it, unless somebody has already."""
        if not self.ended_by:
            self.ended_by = by
            self.task.cancel()


@dataclass(slots=True)
class Live:
    """One connected client, its subscriptions, and its calls on the fast path by request id.

    ``requests`` are the ids of the running requests of a client without HTTP.

    ``owner`` is the `principal_key` of the principal that opened the session.
    """

    connection: Connection
    principal: Principal
    key: Hashable
    owner: str
    calls: dict[str | int, RunningCall] = field(default_factory=dict)
    requests: set[str | int] = field(default_factory=set)
    uris: set[str] = field(default_factory=set)
    level: str = DEFAULT_LEVEL

    @contextmanager
    def running(self, request_id: str | int) -> Iterator[None]:
        """Keep the id of a request while it runs; raises MCPError for an id that another one has."""
        key = coerce_request_id(request_id)
        if key in self.requests:
            raise id_in_use(request_id)
        self.requests.add(key)
        try:
            yield
        finally:
            self.requests.discard(key)


def id_in_use(request_id: str | int) -> MCPError:
    """The error of a request whose id an unanswered request of the same session has."""
    problem = f"Invalid request: id {request_id!r} is that of a request that is not answered yet"
    return MCPError(types.INVALID_REQUEST, problem)


class Connections:
    """The connections of clients with sessions, each from its first message to its end.

    ``visibility_key_of`` is the offer's: equal for clients that see the same. ``follow`` is called with the
    URIs of all resources that clients subscribed to, whenever they change. ``shared`` tells other processes
    of a hub of the sessions. The record of a session that ends is removed from ``records``.
    """

    def __init__(
        self,
        visibility_key_of: Callable[[Principal], Hashable],
        follow: Callable[[frozenset[str]], None] = lambda uris: None,
        shared: SharedSessions | None = None,
        records: SessionRecords | None = None,
    ) -> None:
        self._records = records
        self._key_of = visibility_key_of
        self._follow = follow
        self._shared = shared
        self._live: dict[int, Live] = {}
        self._streams: dict[object, frozenset[str]] = {}
        """The subscriptions of the ``subscriptions/listen`` streams of 2026-07-28."""
        self._sessions: dict[str, Live] = {}

    def __len__(self) -> int:
        return len(self._live)

    @property
    def visibility_keys(self) -> dict[Hashable, Principal]:
        """The visibility keys of the connected clients, with one principal for each."""
        return {live.key: live.principal for live in self._live.values()}

    def note(self, context: Context) -> Live | None:
        """The connection of this message, recorded when it is new; None without a session."""
        if is_modern(context):
            return None
        connection = connection_of(context)
        live = self._live.get(id(connection))
        if live is None:
            principal = principal_of(context)
            live = self._live[id(connection)] = Live(
                connection, principal, self._key_of(principal), principal_key(principal)
            )
            if connection.session_id is not None:
                self._sessions[connection.session_id] = live
            connection.exit_stack.callback(self._forget, live)
        if self._shared is not None:
            self._shared.note(live)
        return live

    def find(self, session_id: str) -> Live | None:
        """The client of this session; None for a session that never sent a message, or has ended."""
        return self._sessions.get(session_id)

    def cancel(self, context: Context) -> None:
        """End the call on the fast path that this ``notifications/cancelled`` of a session names."""
        live = self.note(context)
        request_id = cancelled_request_id_from_params(context.params)
        if live is None or request_id is None:
            return
        running = live.calls.get(coerce_request_id(request_id))
        session_id = live.connection.session_id
        if running is not None:
            running.end("client")
        elif self._shared is not None and session_id is not None:
            self._shared.cancel(session_id, request_id)

    def subscribe(self, context: Context, uri: str) -> None:
        """Notify this connection of changes of a resource."""
        if (live := self.note(context)) is not None:
            live.uris.add(uri)
            self._report_watched()

    def unsubscribe(self, context: Context, uri: str) -> None:
        """Stop notifying this connection."""
        if (live := self.note(context)) is not None:
            live.uris.discard(uri)
            self._report_watched()

    @contextmanager
    def streaming(self, uris: frozenset[str]) -> Iterator[None]:
        """Count a ``subscriptions/listen`` stream as subscribed to these resources while inside."""
        token = object()
        self._streams[token] = uris
        self._report_watched()
        try:
            yield
        finally:
            del self._streams[token]
            self._report_watched()

    def _report_watched(self) -> None:
        self._follow(
            frozenset[str]().union(*(live.uris for live in self._live.values()), *self._streams.values())
        )

    def _forget(self, live: Live) -> None:
        self._live.pop(id(live.connection), None)
        self._sessions.pop(live.connection.session_id or "", None)
        if self._shared is not None:
            self._shared.end(live.connection.session_id or "")
        if self._records is not None:
            self._records.remove(live.connection.session_id or "")
        for running in list(live.calls.values()):
            running.end("session")
        if live.uris:
            self._report_watched()

    async def notify(
        self, method: str, params: dict[str, Any] | None, wanted_by: Callable[[Live], bool]
    ) -> None:
        """Send a notification to the subscribed clients; drop a client that does not read it."""
        chosen = [live for live in self._live.values() if wanted_by(live)]
        await asyncio.gather(*(self._send(live, method, params) for live in chosen))

    async def _send(self, live: Live, method: str, params: dict[str, Any] | None) -> None:
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await live.connection.notify(method, params)
        except TimeoutError:
            self._live.pop(id(live.connection), None)


_log = structlog.get_logger(__name__)


DELAY_FACTOR = 10.0
"""Comparing the lists of all visibility keys takes at most this fraction (1/n) of the time."""


UNDELAYED_S = 0.02
"""Finding out is not delayed as long as it takes no longer than this."""


Listener = Callable[[ServerEvent], None]


_EVENTS: dict[str, ServerEvent] = {
    "tools": ToolsListChanged(),
    "resources": ResourcesListChanged(),
    "prompts": PromptsListChanged(),
}


@dataclass(frozen=True, slots=True)
class _View:
    """Digests of the lists that callers with one visibility key were last shown."""

    tools: bytes
    resources: bytes
    prompts: bytes


class ChangeNotifier:
    """Notifies clients of changes of an offer; also the SDK's event bus for ``subscriptions/listen``."""

    def __init__(self, offer: Offer, connections: Connections) -> None:
        self._offer = offer
        self._connections = connections
        self._listeners: dict[object, tuple[Listener, Principal, Hashable]] = {}
        self._views: dict[Hashable, _View] = {}
        self._pause_s = 0.0
        self._pending: dict[Change, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flushing: set[asyncio.Task[None]] = set()
        self._unsubscribe: Callable[[], None] = lambda: None

    def open(self) -> None:
        """Begin to observe the offer, in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._unsubscribe = self._offer.subscribe(self._changed)

    def close(self) -> None:
        self._unsubscribe()
        for task in self._flushing:
            task.cancel()

    def attend(self, principal: Principal) -> None:
        """Record what callers like this one see now, to detect later changes."""
        key = self._offer.visibility_key_of(principal)
        if key not in self._views:
            self._find_changes(key, principal)

    async def publish(self, event: ServerEvent) -> None:
        """Deliver an event to every stream (the SDK's bus protocol)."""
        self._deliver(event, None)
        await anyio.lowlevel.checkpoint()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Add one ``subscriptions/listen`` stream, with the view of the request that opened it."""
        token, principal = object(), current_principal.get()
        self.attend(principal)
        self._listeners[token] = (listener, principal, self._offer.visibility_key_of(principal))
        return lambda: self._forget(token)

    def _forget(self, token: object) -> None:
        self._listeners.pop(token, None)

    def _changed(self, change: Change) -> None:
        """Take a change, in any thread; changes of one moment are sent once."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._take, change)

    def _take(self, change: Change) -> None:
        if not self._pending:
            task = asyncio.ensure_future(self._flush())
            self._flushing.add(task)
            task.add_done_callback(self._flushing.discard)
        self._pending[change] = None

    async def _flush(self) -> None:
        await asyncio.sleep(self._pause_s)
        changes, self._pending = self._pending, {}
        needed = self._connections.visibility_keys
        needed |= {key: principal for _, principal, key in self._listeners.values()}
        for key in [known for known in self._views if known not in needed]:
            del self._views[key]
        if any(change.kind != "resource" for change in changes):
            for principal in needed.values():
                await self._offer.prepare(principal)
            began = time.perf_counter()
            changed = {key: self._find_changes(key, principal) for key, principal in needed.items()}
            spent_s = time.perf_counter() - began
            self._pause_s = DELAY_FACTOR * spent_s if spent_s > UNDELAYED_S else 0.0
            for key, kinds in changed.items():
                await self._notify_lists(key, kinds)
        for change in changes:
            if change.kind == "resource":
                await self._notify_update(change.uri, needed)

    def _find_changes(self, key: Hashable, principal: Principal) -> list[str]:
        """The kinds of lists that differ now."""
        before = self._views.get(key)
        try:
            now = self._views[key] = self._look(principal)
        except RetinueError as error:
            _log.warning("the lists of MCP clients could not be made", error=str(error))
            return []
        return [kind for kind in _EVENTS if before is None or getattr(before, kind) != getattr(now, kind)]

    async def _notify_lists(self, key: Hashable, kinds: list[str]) -> None:
        for kind in kinds:
            self._deliver(_EVENTS[kind], key)
            await self._connections.notify(
                f"notifications/{kind}/list_changed", None, lambda live: live.key == key
            )

    async def _notify_update(self, uri: str, needed: Mapping[Hashable, Principal]) -> None:
        seeing = {s for s, principal in needed.items() if find_resource(self._offer, uri, principal)}
        for key in seeing:
            self._deliver(ResourceUpdated(uri), key)

        def wants(live: Live) -> bool:
            return uri in live.uris and live.key in seeing

        await self._connections.notify("notifications/resources/updated", {"uri": uri}, wants)

    def _deliver(self, event: ServerEvent, key: Hashable) -> None:
        """Send to the streams with this visibility key; None = to all."""
        for listener, _, own in list(self._listeners.values()):
            if key is not None and own != key:
                continue
            try:
                listener(event)
            except Exception:  # noqa: BLE001 - one stream must not silence the others
                _log.exception("a listening stream failed")

    def _look(self, principal: Principal) -> _View:
        offer = self._offer
        return _View(
            sha256(offer.tools(principal).listed).digest(),
            _digest(offer.resources(principal)),
            _digest(offer.prompts(principal)),
        )


def _digest(things: Iterable[Resource | Prompt]) -> bytes:
    return sha256(orjson.dumps(list(things))).digest()


def find_resource(offer: Offer, uri: str, principal: Principal) -> Resource | None:
    """The resource of this URI, or the template that matches it, if the caller may see it."""
    seen = offer.resources(principal)
    exact = next((resource for resource in seen if resource.uri == uri), None)
    if exact is not None:
        return exact
    templates = (resource for resource in seen if is_template(resource.uri))
    return next((template for template in templates if fits_template(template.uri, uri)), None)
