"""The MCP endpoints of a hub: its own, and one for every agent, with a fallback for agents without MCP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cachetools import LRUCache
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from retinue.authoring.local import local_reader
from retinue.core.call import Call
from retinue.core.errors import UnknownPromptError, UnknownResourceError
from retinue.core.record import AgentRecord, Listing, ListingKey
from retinue.hub.orchestration.results import METADATA_KEY
from retinue.hub.orchestration.tool_list import ToolList
from retinue.mcp.relay.endpoint import RelayEndpoint, relay_route
from retinue.mcp.relay.sessions import RelayedSessions
from retinue.mcp.server.hub_offer import HubOffer
from retinue.mcp.server.lazy_server import lazy_server, mcp_route
from retinue.mcp.server.long_results import LongResults
from retinue.mcp.server.offer import McpOptions, RecordOffer
from retinue.mcp.session_records import RelayedRecords, SessionRecords
from retinue.mcp.upstream.client import AgentClient
from retinue.mcp.upstream.imports.reads import HubReads, ServerReads, ServersInHub
from retinue.mcp.upstream.imports.server import IMPORTS
from retinue.mesh.channel import Channel
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listing_cache import ListingChange
from retinue.mesh.directory.sources import name_member
from retinue.mesh.guard.trace_guard import AdmittedCall
from retinue.mesh.permissions import Access, is_seen
from retinue.mesh.reading import Change, ChangeObserver, Read, Reader, ReadRequest
from retinue.parts.lazy import Lazy
from retinue.parts.process import Process
from retinue.runtime.endpoints.agent_mcp import McpEndpoints
from retinue.settings_tables import HubTable, LimitTable, McpTable
from retinue.web.security import identity_of

if TYPE_CHECKING:
    from retinue.mcp.server.endpoint import McpServer
    from retinue.mcp.server.shared_sessions import LedSessions, SharedSessions

LEXICAL = ("lexical", "2.0.0")
"""The name and version of seed 002's server (L-27)."""

INSTRUCTIONS = (
    "A mesh of agents. Skills of agents are tools named <agent>__<skill>. Where the list does not show what "
    "you need, ask find_skills, then call_skill (or call_read_only_skill for a row that is read_only) with "
    "the agent and the skill that it names. The resource agent:<name> tells all about one agent. orchestrate "
    "hands a whole task to one or several agents."
)
"""The instructions for the client's model."""

MAX_FALLBACKS = 200
"""Maximum number of open fallback endpoints; the least recently used is closed first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMcp:
    """A product: what the endpoints of several processes of one hub share.

    ``make_state`` names suspended calls, so that each process knows who has one. The leader has ``sessions``;
    in another process they are ``led``, and ``send_result`` gives the leader a long result. ``relayed`` are
    the records of the leader's sessions at agents.
    """

    make_state: Callable[[], str]
    sessions: SharedSessions | None = None
    led: LedSessions | None = None
    send_result: Callable[[Sequence[Any]], Awaitable[None]] | None = None
    relayed: RelayedRecords | None = None


@asynccontextmanager
async def open_hub_mcp(process: Process, imported: ServersInHub | None) -> AsyncIterator[McpEndpoints]:
    """Open the endpoints of a hub, its own and those of every agent; closed on leaving."""
    shared, tools = process.find(SharedMcp), process.find(ToolList)
    agent, dispatcher, directory = process.agent, process.dispatcher, process.get(Directory)
    hub, mcp = process.tables.get(HubTable), process.tables.get(McpTable)
    offer = HubOffer(
        lambda: agent.record(with_facts=True),
        agent.changes.subscribe,
        directory,
        dispatcher.access,
        listing=hub.listing,
        listed=hub.listed,
        names=mcp.names,
        instructions=INSTRUCTIONS,
        shape=None if tools is None else tools.shape,
        identity=LEXICAL if hub.identity == "lexical" else None,
        imported=imported,
    )
    options = McpOptions(
        guard_as_tool_error=mcp.guard_as_tool_error,
        metadata_key=METADATA_KEY if hub.identity == "lexical" else None,
        result_chars=mcp.result_chars,
        max_body_bytes=process.tables.get(LimitTable).body_bytes,
    )
    if shared is not None:
        options = replace(options, make_state=shared.make_state)
    reads = local_reader(agent, dispatcher, dispatcher)
    if imported is not None:
        reads.source = HubReads(reads.source, imported)
    long_results = LongResults(options.result_chars, send=None if shared is None else shared.send_result)
    process.add(LongResults, long_results)
    own = lazy_server(
        offer,
        dispatcher,
        reads,
        options,
        long_results,
        shared=None if shared is None else shared.sessions,
        led=None if shared is None else shared.led,
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(own.aclose)
        records = None if shared is None or shared.sessions is None else shared.sessions.records
        fallbacks = FallbackEndpoints(process, options, long_results, imported, records)
        stack.push_async_callback(fallbacks.aclose)
        relay = RelayEndpoint(
            dispatcher,
            directory,
            process.get(AgentClient),
            sessions=RelayedSessions(records=None if shared is None else shared.relayed),
            fallback=fallbacks.open,
            has_fallback_session=fallbacks.has_session,
        )
        endpoint = mcp_route(own, ensure_fresh=partial(directory.ensure_fresh, for_call=True))
        named = Route(
            f"/agents/{agent.name}/mcp", _OwnEndpoint(agent.name, dispatcher.access, endpoint.app, relay)
        )

        def end() -> None:
            own.end()
            fallbacks.end()

        yield McpEndpoints(own, (named, relay_route(relay), endpoint), end)


class _OwnEndpoint:
    """The hub's endpoint under its agent name, for callers that may see that agent."""

    def __init__(self, name: str, access: Access, own: ASGIApp, others: ASGIApp) -> None:
        self._name = name
        self._access = access
        self._own = own
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if is_seen(self._access.view_of(identity_of(scope).principal), self._name):
            await self._own(scope, receive, send)
            return
        scope["path_params"] = {**scope.get("path_params", {}), "agent": self._name}
        await self._others(scope, receive, send)


@dataclass(slots=True)
class _Held:
    server: Lazy[McpServer]
    app: ASGIApp
    stack: AsyncExitStack


class FallbackEndpoints:
    """MCP servers in front of ``/execute``, made from cards, for agents that do not speak MCP.

    ``records`` let the next leader of a hub go on with their sessions.
    """

    def __init__(
        self,
        process: Process,
        options: McpOptions,
        long_results: LongResults,
        imported: ServersInHub | None,
        records: SessionRecords | None = None,
    ) -> None:
        self._records = records
        self._directory = process.get(Directory)
        self._dispatcher = process.dispatcher
        self._names = process.tables.get(McpTable).names
        self._imported = imported
        self._options = options
        self._long_results = long_results
        self._held: LRUCache[ListingKey, _Held] = LRUCache(MAX_FALLBACKS)

    async def open(self, listing: Listing) -> ASGIApp:
        """The endpoint of one agent; its list follows the card."""
        held = self._held.get(listing.id)
        if held is None:
            held = await self._make(listing)
            displaced = self._held.popitem()[1] if len(self._held) >= MAX_FALLBACKS else None
            self._held[listing.id] = held
            if displaced is not None:
                await displaced.stack.aclose()
        return held.app

    def has_session(self, listing: Listing, session_id: str) -> bool:
        """Whether a session at the endpoint of an agent is recorded."""
        records = self._records_of(listing)
        return records is not None and records.find(session_id) is not None

    def _records_of(self, listing: Listing) -> SessionRecords | None:
        return None if self._records is None else self._records.of_server("\n".join(listing.id))

    async def _make(self, listing: Listing) -> _Held:
        directory = self._directory
        stack = AsyncExitStack()

        def read_record() -> AgentRecord:
            now = directory.find_listing(listing.id) or listing
            return replace(now.record, name=directory.name_of(now))

        def subscribe(observer: ChangeObserver) -> Callable[[], None]:
            def watch(change: ListingChange) -> None:
                if change.entry.id == listing.id and not change.measured:
                    observer(Change("tools"))

            unsubscribe = directory.subscribe(watch)
            stack.callback(unsubscribe)
            if servers is not None:
                stack.callback(servers.subscribe_resources(partial(notify_of_resource, observer)))
            return lambda: None

        def notify_of_resource(observer: ChangeObserver, name: str, uri: str) -> None:
            if name == member:
                observer(Change("resource", uri))

        imported, member = self._imported, name_member(listing.id)
        servers = imported.servers if imported is not None and listing.source == IMPORTS else None
        dispatcher = self._dispatcher
        offer = RecordOffer(
            read_record,
            subscribe,
            dispatcher.access,
            names=self._names,
            logs=servers is not None,
            listing=listing,
        )
        source = _Nothing() if servers is None or imported is None else ServerReads(imported, member)
        timeout_s = dispatcher.timeouts.endpoint_s
        reads = Reader(offer.agent, source, dispatcher.admission, timeout_s)
        server = lazy_server(
            offer,
            dispatcher,
            reads,
            self._options,
            self._long_results,
            records=self._records_of(listing),
        )
        stack.push_async_callback(server.aclose)
        return _Held(server, mcp_route(server, "/").app, stack)

    def end(self) -> None:
        """End every session of every endpoint."""
        for held in self._held.values():
            held.server.end()

    async def aclose(self) -> None:
        """Close every endpoint."""
        for held in self._held.values():
            await held.stack.aclose()


class _Nothing:
    """Rejects reads: a card has neither resources nor prompts."""

    async def read(self, request: ReadRequest, call: Call, admitted: AdmittedCall, channel: Channel) -> Read:
        if request.kind == "resource":
            raise UnknownResourceError(request.name)
        raise UnknownPromptError(request.name)

    def follow(self, uris: frozenset[str]) -> None:
        """Nothing changes here."""
