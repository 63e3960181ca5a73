"""The two nodes of seed 003: ``KoiAgentNode`` of an agent, ``CoordinatorAdapterNode`` of a coordinator.

Each is a `KoiNode` and a server at one port. ``await start()`` serves and joins the network. Where an ASGI
server runs the lifespan of the server's ``app``, that starts the node without a port of its own.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack
from urllib.parse import urlsplit

import orjson
import structlog
from starlette.applications import Starlette

from retinue.core.errors import InvalidSettingError
from retinue.runtime.serving import Stop, bind, end_task, serving
from retinue.web.addresses import is_loopback
from retinue_koi.adapter import MCPAdapter
from retinue_koi.codec.bundles import Event, EventType
from retinue_koi.codec.orn import KoiNetNode
from retinue_koi.codec.personality import AgentPersonality, PersonalityProfile, PersonalityTrait, is_described
from retinue_koi.knowledge import Handled
from retinue_koi.node import LEAVE_S, KoiNode, personality_node
from retinue_koi.outbox import with_retry
from retinue_koi.peers import FirstContact, PeerError
from retinue_koi.personality_handlers import fill_adapter, register_personality_handlers
from retinue_koi.presence import EVICT_AFTER_S, LOOK_EVERY_S, Presence
from retinue_koi.programs.servers import AgentPersonalityServer, AgentRegistryServer, Guard
from retinue_koi.rules import Trust
from retinue_koi.server import routes
from retinue_koi.source import mark_members

_log = structlog.get_logger("retinue.koi")


class NodeOptions(TypedDict, total=False):
    """Options that both nodes have.

    Identity and cache are in ``folder``, by default ``.koi/{name}`` below the working directory. ``trust``
    and ``known`` are those of `KoiNode`. Without ``allow_private``, nodes at private addresses are not asked.
    """

    folder: Path | None
    trust: Trust | None
    known: Iterable[str]
    allow_private: bool


class _Node(ABC):
    """The common part of both nodes: one start and one stop of the node, however often they are requested."""

    def __init__(self, node: KoiNode) -> None:
        self.node = node
        self._is_started = False
        self._ending = AsyncExitStack()

    @property
    @abstractmethod
    def server(self) -> AgentPersonalityServer | AgentRegistryServer:
        """The server of the node."""

    async def start(self, app: Starlette | None = None) -> None:
        """Serve at the ports of the node's URLs, and join the network; a second call does nothing.

        With ``app`` no port is opened: the endpoints are mounted there, and the caller serves it. No port is
        opened either where the server runs already: in the lifespan of its ``app``, or in ``running()``.
        Raises StateError, PortInUseError, and InvalidSettingError for an address that other machines reach
        unless the node has a ``guard``.
        """
        if self._is_started:
            return
        self._is_started = True
        try:
            async with AsyncExitStack() as stack:
                if not self.server.is_running:
                    await stack.enter_async_context(self.server.running())
                    if app is not None:
                        app.mount("/", self.server.app)
                    else:
                        await self._listen(stack)
                await self._start()
                stack.push_async_callback(self._stop)
                self._ending = stack.pop_all()
        except BaseException:
            self._is_started = False
            raise

    async def stop(self) -> None:
        """Leave the network and stop serving; unsent events wait for the next start."""
        if self._is_started:
            self._is_started = False
            await self._ending.aclose()

    async def _listen(self, stack: AsyncExitStack) -> None:
        """Listen at the port of the server, and at that of the KOI API if it is another one."""
        base_url = self.node.state.identity.profile.base_url or ""
        host = host_of(base_url, "base_url")
        if not (is_loopback(host) or self.server.is_guarded):
            raise InvalidSettingError(
                "base_url",
                f"{host} is reachable from other machines, and the node checks no callers",
                remedy="give a guard that asks for tokens, bind 127.0.0.1, or serve an app of your own",
            )
        parts = urlsplit(base_url)
        koi_port = parts.port or (443 if parts.scheme == "https" else 80)
        for port in sorted({self.server.port, koi_port}):
            await stack.enter_async_context(serving(self.server.app, bind(host, port), Stop()))

    @abstractmethod
    async def _start(self) -> None:
        """Start the node, and what the subclass does at its first start."""

    async def _stop(self) -> None:
        await self.node.stop()

    @asynccontextmanager
    async def _started(self) -> AsyncIterator[None]:
        await self.start()
        try:
            yield
        finally:
            await self.stop()


class KoiAgentNode(_Node):
    """An agent on a KOI network, with its personality and its MCP server (K-06 … K-11).

    ``traits`` are plain values, described ones, or functions, which are callable traits; ``functions`` answer
    for described callable traits. ``base_url`` is that of the KOI API, ``mcp_url`` that of the REST and MCP
    endpoints, by default the host of ``base_url`` with ``mcp_port``. A stop takes the personality from the
    network, unless ``keep_on_stop``.
    Raises InvalidSettingError, also for a name or version that no RID can hold.
    """

    def __init__(
        self,
        name: str,
        version: str,
        traits: Mapping[str, Any],
        base_url: str,
        mcp_port: int,
        first_contact: FirstContact | str | None = None,
        *,
        functions: Mapping[str, Callable[..., Any]] | None = None,
        mcp_url: str | None = None,
        guard: Guard | None = None,
        keep_on_stop: bool = False,
        **options: Unpack[NodeOptions],
    ) -> None:
        self._keep_on_stop = keep_on_stop
        self.personality_rid = _personality_rid(name, version)
        plain, found = _split_functions(traits)
        super().__init__(personality_node(name, base_url, first_contact=first_contact, **options))
        node = self.node
        self.profile = PersonalityProfile(
            rid=self.personality_rid,
            node_rid=KoiNetNode.from_string(node.rid),
            base_url=base_url,
            mcp_url=mcp_url or _mcp_url(base_url, mcp_port),
            traits=[_make_trait(trait, value) for trait, value in plain.items()],
        )
        self.mcp_server = AgentPersonalityServer(
            mcp_port, self.profile, functions={**found, **(functions or {})}, guard=guard
        )
        self.mcp_server.add_routes(routes(node))
        self.mcp_server.run_with(self._started)
        self._register_handlers()

    @property
    def server(self) -> AgentPersonalityServer:
        return self.mcp_server

    async def _stop(self) -> None:
        if not self._keep_on_stop:
            await self.forget()
        await super()._stop()

    def _register_handlers(self) -> None:
        register_personality_handlers(self.node.processor)
        # seed 003's handlers read it there
        self.node.processor.personality_rid = self.personality_rid  # type: ignore[attr-defined]

    async def _start(self) -> None:
        """Start the node, take the own personality into its cache, then tell the first contact (K-09)."""
        await self.node.start()
        held = self.node.cache.read(self.personality_rid)
        contents = self.profile.model_dump()
        bundle = (
            held
            if held is not None and held.contents == contents
            else self.node.state.generate_bundle(self.personality_rid, contents)
        )
        await self.node.processor.handle(bundle=bundle, event_type=EventType.NEW)
        contact = self.node.wire.peers.contact_address()
        if contact is None:
            return
        event = Event.from_bundle(EventType.NEW, bundle)
        try:
            await self.node.wire.peers.broadcast_events(events=[event], address=contact)
        except PeerError as error:
            problem = {"url": contact.url, "reason": str(error), "remedy": error.remedy}
            _log.warning("the first contact was not told", **problem)
            self.node.work.spawn(self._tell_again(event))

    async def _tell_again(self, event: Event) -> None:
        """Send the event to the first contact once it answers; after that `KoiNode` tries to join it."""

        @with_retry(exceptions=PeerError)
        async def tell() -> None:
            contact = self.node.wire.peers.contact_address()
            if contact is not None:
                await self.node.wire.peers.broadcast_events(events=[event], address=contact)

        try:
            await tell()
        except PeerError as error:
            _log.warning("the first contact does not answer", reason=str(error), remedy=error.remedy)

    def update_traits(self, traits: Mapping[str, Any]) -> Handled:
        """Update or add traits, and tell the network; await the result for the end of its processing (K-10).

        A described entry updates metadata; a function answers for a callable trait from now on.
        """
        plain, functions = _split_functions(traits)
        for name, value in plain.items():
            _check_json(name, value)
            if not self.profile.update_trait(name, value):
                self.profile.add_trait(_make_trait(name, value))
        agent = self.mcp_server.agent
        for name, function in functions.items():
            agent.bind(name, function)
        agent.follow_profile()
        bundle = self.node.state.generate_bundle(self.personality_rid, self.profile.model_dump())
        return self.node.processor.handle(bundle=bundle, event_type=EventType.UPDATE)

    async def forget(self) -> None:
        """Take the personality from the network, for an agent that leaves it."""
        contact = self.node.wire.peers.contact_address()
        is_neighbor = contact is not None and contact.rid in self.node.graph.get_neighbors()
        await self.node.forget([str(self.personality_rid)])
        if contact is None or is_neighbor:
            return
        # it was told at the start, and has not joined yet
        event = Event.from_rid(EventType.FORGET, self.personality_rid)
        try:
            async with asyncio.timeout(LEAVE_S):
                await self.node.wire.peers.broadcast_events(events=[event], address=contact)
        except (PeerError, TimeoutError) as error:
            _log.info("the first contact was not told", url=contact.url, reason=str(error) or "no answer")


class CoordinatorAdapterNode(_Node):
    """A coordinator: a FULL node that lists the personalities of its network (K-12 … K-15).

    The KOI API, the registry's REST and MCP are at one port. The personalities of its cache are listed from
    the start, before any agent speaks. Members are asked every ``look_every_s`` whether they are there, and
    are evicted once they have not answered for ``evict_after_s``; 0 = never. ``clock`` measures their
    silence.
    """

    def __init__(
        self,
        name: str,
        base_url: str,
        mcp_registry_port: int = 9000,
        *,
        first_contact: FirstContact | str | None = None,
        guard: Guard | None = None,
        evict_after_s: float = EVICT_AFTER_S,
        look_every_s: float = LOOK_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
        **options: Unpack[NodeOptions],
    ) -> None:
        super().__init__(personality_node(name, base_url, first_contact=first_contact, **options))
        self.mcp_adapter = MCPAdapter()
        self._register_handlers()
        path = urlsplit(base_url).path
        self.registry_server = AgentRegistryServer(
            mcp_registry_port,
            self.mcp_adapter,
            path or None,
            name=name,
            guard=guard,
            allow_private=options.get("allow_private", True),
        )
        self._add_koi_endpoints()
        self.registry_server.run_with(self._started)
        self.url = base_url.removesuffix(path) if path else base_url
        self.presence = Presence(
            self.node,
            partial(mark_members, self.registry_server.directory),
            evict_after_s=evict_after_s,
            look_every_s=look_every_s,
            clock=clock,
        )
        self.registry_server.is_silent = self.presence.is_silent
        self._looking: asyncio.Task[None] | None = None

    @property
    def server(self) -> AgentRegistryServer:
        return self.registry_server

    def _register_handlers(self) -> None:
        register_personality_handlers(self.node.processor, self.mcp_adapter)

    def _add_koi_endpoints(self) -> None:
        self.registry_server.add_routes(routes(self.node))

    async def _start(self) -> None:
        await self.node.start()
        count = fill_adapter(self.mcp_adapter, self.node.cache)
        _log.info("personalities of the cache listed", count=count)
        self._looking = asyncio.create_task(self.presence.run())

    async def _stop(self) -> None:
        if self._looking is not None:
            await end_task(self._looking)
        await super()._stop()


def host_of(base_url: str, field: str) -> str:
    """The host of a node's URL, to listen on; raises InvalidSettingError."""
    try:
        parts = urlsplit(base_url)
        host = parts.hostname
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise InvalidSettingError(
            field, f"{base_url[:80]!r} is no URL", remedy="write http://127.0.0.1:9000/koi-net"
        )
    return "127.0.0.1" if host == "localhost" else host


def _personality_rid(name: str, version: str) -> AgentPersonality:
    try:
        return AgentPersonality(name, version)
    except ValueError as error:
        raise InvalidSettingError(
            "agent", str(error), remedy="choose a name and a version without a slash"
        ) from error


def _split_functions(
    traits: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Callable[..., Any]]]:
    """The traits as JSON, and the functions among them: as the value of a trait or of a described entry."""
    plain: dict[str, Any] = {}
    functions: dict[str, Callable[..., Any]] = {}
    for name, value in traits.items():
        if callable(value):
            functions[name] = value
            plain[name] = {"description": "", "is_callable": True}
        elif is_described(value) and callable(value.get("value")):
            functions[name] = value["value"]
            rest = {key: item for key, item in value.items() if key not in ("value", "type")}
            plain[name] = {"description": "", **rest, "is_callable": True}
        else:
            plain[name] = value
    return plain, functions


def _make_trait(name: str, value: Any) -> PersonalityTrait:
    _check_json(name, value)
    return PersonalityTrait.from_entry(name, value)


def _check_json(name: str, value: Any) -> None:
    try:
        orjson.dumps(value)
    except TypeError as error:
        raise InvalidSettingError(
            f"trait {name}", f"its value is not JSON: {error}", remedy="give text, numbers, lists or objects"
        ) from error


def _mcp_url(base_url: str, mcp_port: int) -> str:
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{mcp_port}"
