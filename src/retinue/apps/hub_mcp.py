"""The MCP doors of a hub: its own, and one for every agent, whether or not the agent has one itself."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from retinue.apps.mesh import Mesh
from retinue.authoring.reading import local_reader
from retinue.core.call import Call
from retinue.core.errors import UnknownPromptError, UnknownResourceError
from retinue.core.record import AgentRecord, Listing, ListingKey
from retinue.mesh.access import is_seen
from retinue.mesh.changes import Change, ChangeObserver
from retinue.mesh.channel import Channel
from retinue.mesh.guards import Passage
from retinue.mesh.holdings import Change as DirectoryChange
from retinue.mesh.reading import Read, Reader, ReadRequest
from retinue.settings import Settings
from retinue.surfaces.mcp.door import McpDoor, McpOptions
from retinue.surfaces.mcp.hub_endpoint import hub_route
from retinue.surfaces.mcp.mesh_offer import MeshOffer
from retinue.surfaces.mcp.record_offer import RecordOffer
from retinue.surfaces.mcp_relay.door import RelayDoor, mcp_relay_route
from retinue.surfaces.security import visitor_of

INSTRUCTIONS = (
    "A mesh of agents. Skills of agents are tools named <agent>__<skill>. Where the list does not show what "
    "you need, ask find_skills, then call_skill with the agent and the skill that it names. The resource "
    "agent:<name> tells all about one agent; orchestrate_workflow runs several in a row."
)
"""What a client's model is told about the hub's tools."""

MAX_FOREIGN = 200
"""Agents without an MCP door of their own that have one here at a time; the least used gives way."""


@dataclass(frozen=True, slots=True)
class HubMcp:
    """The doors, open; made by `open_hub_mcp`."""

    own: McpDoor
    foreign: ForeignDoors
    routes: tuple[Route, ...]

    def end(self) -> None:
        """End every session and stream now, so that a server which waits for them can stop."""
        self.own.end()
        self.foreign.end()


@asynccontextmanager
async def open_hub_mcp(mesh: Mesh, settings: Settings) -> AsyncIterator[HubMcp]:
    """Open the doors of a hub over ``mesh``; closed on leaving."""
    offer = MeshOffer(
        lambda: mesh.agent.record(with_facts=True),
        mesh.agent.changes.subscribe,
        mesh.directory,
        mesh.access,
        listing=settings.hub.listing,
        names=settings.mcp.names,
        instructions=INSTRUCTIONS,
    )
    options = McpOptions(
        guard_as_tool_error=settings.mcp.guard_as_tool_error,
        result_chars=settings.mcp.result_chars,
        max_body_bytes=settings.limits.body_bytes,
    )
    reads = local_reader(mesh.agent, mesh.dispatcher, mesh.dispatcher)
    own = McpDoor(offer, mesh.dispatcher, reads, options)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(own.running())
        foreign = ForeignDoors(mesh, settings, options)
        stack.push_async_callback(foreign.aclose)
        relay = RelayDoor(mesh.dispatcher, mesh.directory, mesh.mcp_peers, doorless=foreign.open)
        door = hub_route(own.route(), mesh.directory.ensure_fresh)
        named = Route(f"/agents/{mesh.agent.name}/mcp", _OwnDoor(mesh, door.app, relay))
        yield HubMcp(own, foreign, (door, named, mcp_relay_route(relay)))


class _OwnDoor:
    """The hub's door under its name as an agent; who does not see that agent finds none there."""

    def __init__(self, mesh: Mesh, own: ASGIApp, others: ASGIApp) -> None:
        self._mesh = mesh
        self._own = own
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = self._mesh.agent.name
        if is_seen(self._mesh.access.view_of(visitor_of(scope).principal), name):
            await self._own(scope, receive, send)
            return
        scope["path_params"] = {**scope.get("path_params", {}), "agent": name}
        await self._others(scope, receive, send)


@dataclass(slots=True)
class _Held:
    door: McpDoor
    app: ASGIApp
    stack: AsyncExitStack


class ForeignDoors:
    """MCP servers over ``/execute``, made of cards, for agents that speak no MCP."""

    def __init__(self, mesh: Mesh, settings: Settings, options: McpOptions) -> None:
        self._mesh = mesh
        self._names = settings.mcp.names
        self._options = options
        self._held: OrderedDict[ListingKey, _Held] = OrderedDict()

    async def open(self, listing: Listing) -> ASGIApp:
        """The door of one agent; its list follows the card."""
        held = self._held.get(listing.id)
        if held is None:
            held = self._held[listing.id] = await self._make(listing)
            if len(self._held) > MAX_FOREIGN:
                _, oldest = self._held.popitem(last=False)
                await oldest.stack.aclose()
        self._held.move_to_end(listing.id)
        return held.app

    async def _make(self, listing: Listing) -> _Held:
        directory = self._mesh.directory
        stack = AsyncExitStack()

        def read_record() -> AgentRecord:
            now = directory.find_listing(listing.id) or listing
            return replace(now.record, name=directory.name_of(now))

        def subscribe(observer: ChangeObserver) -> Callable[[], None]:
            def watch(change: DirectoryChange) -> None:
                if change.entry.id == listing.id and not change.measured:
                    observer(Change("tools"))

            unsubscribe = directory.subscribe(watch)
            stack.callback(unsubscribe)
            return lambda: None

        offer = RecordOffer(read_record, subscribe, names=self._names)
        dispatcher = self._mesh.dispatcher
        reads = Reader(offer.agent, _Nothing(), dispatcher.guard, dispatcher.limits, dispatcher.events)
        door = McpDoor(offer, dispatcher, reads, self._options)
        await stack.enter_async_context(door.running())
        return _Held(door, door.route("/").app, stack)

    def end(self) -> None:
        """End every session of every door."""
        for held in self._held.values():
            held.door.end()

    async def aclose(self) -> None:
        """Close every door."""
        for held in self._held.values():
            await held.stack.aclose()


class _Nothing:
    """A card has neither resources nor prompts."""

    async def read(self, request: ReadRequest, call: Call, passage: Passage, channel: Channel) -> Read:
        if request.kind == "resource":
            raise UnknownResourceError(request.name)
        raise UnknownPromptError(request.name)
