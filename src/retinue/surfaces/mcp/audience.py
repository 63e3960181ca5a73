"""Who hears that a list or a resource changed: clients of both eras, each only of what it sees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio.lowlevel
import structlog
from mcp.server.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)

from retinue.core.record import Prompt, Resource
from retinue.mesh.changes import Change
from retinue.protocols.mcp.uris import is_template, parse_template
from retinue.surfaces.mcp.callers import view
from retinue.surfaces.mcp.connections import Connections, Live
from retinue.surfaces.mcp.offer import Offer

_log = structlog.get_logger(__name__)

Listener = Callable[[ServerEvent], None]

_EVENTS: dict[str, ServerEvent] = {
    "tools": ToolsListChanged(),
    "resources": ResourcesListChanged(),
    "prompts": PromptsListChanged(),
}


@dataclass(frozen=True, slots=True)
class _View:
    """What one kind of caller was last shown."""

    tools: list[dict[str, Any]]
    resources: tuple[Resource, ...]
    prompts: tuple[Prompt, ...]


class Audience:
    """Tells both eras of the changes of an offer; it is the SDK's bus for the streams of 2026-07-28."""

    def __init__(self, offer: Offer, connections: Connections) -> None:
        self._offer = offer
        self._connections = connections
        self._listeners: dict[object, tuple[Listener, frozenset[str]]] = {}
        self._views: dict[frozenset[str], _View] = {}
        self._pending: dict[Change, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flushing: set[asyncio.Task[None]] = set()
        self._unsubscribe: Callable[[], None] = lambda: None

    def open(self) -> None:
        """Begin to listen to the offer, in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._unsubscribe = self._offer.subscribe(self._changed)

    def close(self) -> None:
        self._unsubscribe()
        for task in self._flushing:
            task.cancel()

    def attend(self, scopes: frozenset[str]) -> None:
        """Note what callers of these scopes see now, to know later whether it changed for them."""
        if scopes not in self._views:
            self._views[scopes] = self._look(scopes)

    async def publish(self, event: ServerEvent) -> None:
        """As the SDK's bus has it: to everybody."""
        self._deliver(event, None)
        await anyio.lowlevel.checkpoint()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Add one stream of the sessionless era, with the view of the request that opened it."""
        token, scopes = object(), view.get()
        self.attend(scopes)
        self._listeners[token] = (listener, scopes)
        return lambda: self._forget(token)

    def _forget(self, token: object) -> None:
        self._listeners.pop(token, None)

    def _changed(self, change: Change) -> None:
        """In whatever thread the offer tells it; changes of one moment are told once."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._take, change)

    def _take(self, change: Change) -> None:
        if not self._pending:
            task = asyncio.ensure_future(self._flush())
            self._flushing.add(task)
            task.add_done_callback(self._flushing.discard)
        self._pending[change] = None

    async def _flush(self) -> None:
        await asyncio.sleep(0)
        changes, self._pending = self._pending, {}
        needed = self._connections.views | {scopes for _, scopes in self._listeners.values()}
        for scopes in [known for known in self._views if known not in needed]:
            del self._views[scopes]
        if any(change.kind != "resource" for change in changes):
            for scopes in needed:
                await self._tell_lists(scopes)
        for change in changes:
            if change.kind == "resource":
                await self._tell_update(change.uri, needed)

    async def _tell_lists(self, scopes: frozenset[str]) -> None:
        before, now = self._views.get(scopes), self._look(scopes)
        self._views[scopes] = now
        for kind, event in _EVENTS.items():
            if before is None or getattr(before, kind) != getattr(now, kind):
                self._deliver(event, scopes)
                await self._connections.tell(
                    f"notifications/{kind}/list_changed", None, lambda live: live.scopes == scopes
                )

    async def _tell_update(self, uri: str, needed: set[frozenset[str]]) -> None:
        seeing = {scopes for scopes in needed if find_resource(self._offer, uri, scopes) is not None}
        for scopes in seeing:
            self._deliver(ResourceUpdated(uri), scopes)

        def wants(live: Live) -> bool:
            return uri in live.uris and live.scopes in seeing

        await self._connections.tell("notifications/resources/updated", {"uri": uri}, wants)

    def _deliver(self, event: ServerEvent, scopes: frozenset[str] | None) -> None:
        for listener, own in list(self._listeners.values()):
            if scopes is not None and own != scopes:
                continue
            try:
                listener(event)
            except Exception:  # noqa: BLE001 - one stream must not silence the others
                _log.exception("a listening stream failed")

    def _look(self, scopes: frozenset[str]) -> _View:
        offer = self._offer
        return _View(offer.tools(scopes).tools, tuple(offer.resources(scopes)), tuple(offer.prompts(scopes)))


def find_resource(offer: Offer, uri: str, scopes: frozenset[str]) -> Resource | None:
    """The resource of this uri, or the template that it fits, as far as such a caller sees it."""
    seen = offer.resources(scopes)
    exact = next((one for one in seen if one.uri == uri), None)
    if exact is not None:
        return exact
    templates = (one for one in seen if is_template(one.uri))
    return next((one for one in templates if parse_template(one.uri).match(uri) is not None), None)
