"""Who hears that a list or a resource changed: clients of both eras, each only of what it sees."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256

import anyio.lowlevel
import orjson
import structlog
from mcp.server.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)

from retinue.core.call import Principal
from retinue.core.errors import RetinueError
from retinue.core.record import Prompt, Resource
from retinue.mesh.changes import Change
from retinue.protocols.mcp.uris import is_template, parse_template
from retinue.surfaces.mcp.callers import asking
from retinue.surfaces.mcp.connections import Connections, Live
from retinue.surfaces.mcp.offer import Offer

_log = structlog.get_logger(__name__)

REST = 10.0
"""Where many agents come and go, looking what changed for whom takes one part of so many of the time."""

SHORT_S = 0.02
"""What takes no longer is done at once."""

Listener = Callable[[ServerEvent], None]

_EVENTS: dict[str, ServerEvent] = {
    "tools": ToolsListChanged(),
    "resources": ResourcesListChanged(),
    "prompts": PromptsListChanged(),
}


@dataclass(frozen=True, slots=True)
class _View:
    """What one kind of caller was last shown: another digest where it is another list."""

    tools: bytes
    resources: bytes
    prompts: bytes


class Audience:
    """Tells both eras of the changes of an offer; it is the SDK's bus for the streams of 2026-07-28."""

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
        """Begin to listen to the offer, in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._unsubscribe = self._offer.subscribe(self._changed)

    def close(self) -> None:
        self._unsubscribe()
        for task in self._flushing:
            task.cancel()

    def attend(self, principal: Principal) -> None:
        """Note what callers like this one see now, to know later whether it changed for them."""
        sight = self._offer.sight_of(principal)
        if sight not in self._views:
            self._look_again(sight, principal)

    async def publish(self, event: ServerEvent) -> None:
        """As the SDK's bus has it: to everybody."""
        self._deliver(event, None)
        await anyio.lowlevel.checkpoint()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Add one stream of the sessionless era, with the view of the request that opened it."""
        token, principal = object(), asking.get()
        self.attend(principal)
        self._listeners[token] = (listener, principal, self._offer.sight_of(principal))
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
        await asyncio.sleep(self._pause_s)
        changes, self._pending = self._pending, {}
        needed = self._connections.sights
        needed |= {sight: principal for _, principal, sight in self._listeners.values()}
        for sight in [known for known in self._views if known not in needed]:
            del self._views[sight]
        if any(change.kind != "resource" for change in changes):
            began = time.perf_counter()
            changed = {sight: self._look_again(sight, principal) for sight, principal in needed.items()}
            spent_s = time.perf_counter() - began
            self._pause_s = REST * spent_s if spent_s > SHORT_S else 0.0
            for sight, kinds in changed.items():
                await self._tell_lists(sight, kinds)
        for change in changes:
            if change.kind == "resource":
                await self._tell_update(change.uri, needed)

    def _look_again(self, sight: Hashable, principal: Principal) -> list[str]:
        """The kinds of lists that are other ones now."""
        before = self._views.get(sight)
        try:
            now = self._views[sight] = self._look(principal)
        except RetinueError as error:
            _log.warning("the lists of MCP clients could not be made", error=str(error))
            return []
        return [kind for kind in _EVENTS if before is None or getattr(before, kind) != getattr(now, kind)]

    async def _tell_lists(self, sight: Hashable, kinds: list[str]) -> None:
        for kind in kinds:
            self._deliver(_EVENTS[kind], sight)
            await self._connections.tell(
                f"notifications/{kind}/list_changed", None, lambda live: live.sight == sight
            )

    async def _tell_update(self, uri: str, needed: Mapping[Hashable, Principal]) -> None:
        seeing = {s for s, principal in needed.items() if find_resource(self._offer, uri, principal)}
        for sight in seeing:
            self._deliver(ResourceUpdated(uri), sight)

        def wants(live: Live) -> bool:
            return uri in live.uris and live.sight in seeing

        await self._connections.tell("notifications/resources/updated", {"uri": uri}, wants)

    def _deliver(self, event: ServerEvent, sight: Hashable) -> None:
        """To the streams of those who see this; None = to all."""
        for listener, _, own in list(self._listeners.values()):
            if sight is not None and own != sight:
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
    """The resource of this uri, or the template that it fits, as far as such a caller sees it."""
    seen = offer.resources(principal)
    exact = next((one for one in seen if one.uri == uri), None)
    if exact is not None:
        return exact
    templates = (one for one in seen if is_template(one.uri))
    return next((one for one in templates if parse_template(one.uri).match(uri) is not None), None)
