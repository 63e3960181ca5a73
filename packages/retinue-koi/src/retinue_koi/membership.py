"""Connects agents and hubs to KOI networks: ``serve --koi-join``, ``hub --koi``, federation.

A hub lists the personalities of its network as agents, and every agent that it has from elsewhere is a
personality of its own node, reached through the hub. The node passes objects from KOI on unchanged, never as
the hub's own, so that nothing echoes between hubs; a loop of calls is stopped by the trace.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from urllib.parse import quote

import structlog
from starlette.routing import BaseRoute

from retinue.authoring.agent import Agent
from retinue.cards.personality_profile import DEFAULT_VERSION
from retinue.core.errors import InvalidSettingError, StateError
from retinue.core.record import AgentRecord, Endpoint, Listing
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listing_cache import ListingChange
from retinue.mesh.reading import Change
from retinue.parts.network_links import NetworkLink
from retinue.parts.process import Process
from retinue.storage.state import State
from retinue_koi.adapter import MCPAdapter
from retinue_koi.codec.bundles import EventType, WireError
from retinue_koi.codec.orn import KoiNetNode
from retinue_koi.codec.personality import AgentPersonality, PersonalityProfile
from retinue_koi.codec.profile_records import render_profile
from retinue_koi.node import KoiNode, personality_node
from retinue_koi.peers import FirstContact, parse_contact
from retinue_koi.personality_handlers import fill_adapter, register_personality_handlers
from retinue_koi.presence import EVICT_AFTER_S, LOOK_EVERY_S, Presence
from retinue_koi.server import PREFIX, routes
from retinue_koi.source import KOI_SOURCE, PersonalitySource, mark_members
from retinue_koi.table import KoiTable

_log = structlog.get_logger("retinue.koi")

_SETTLE_S = 0.2
"""Changes of the directory within this time are told together."""

_LOOK_AGAIN_S = 60.0
"""How often the holders of names are asked whether they are alive, while agents wait for their names."""


def make_node(
    name: str, url: str, state: State, settings: KoiTable, first_contact: str | None, *, allow_private: bool
) -> KoiNode:
    """A FULL node for personalities at ``url``; its identity and cache are in the state folder.

    ``first_contact`` is the node to join, as its URL or as ``URL#RID``.

    Raises InvalidSettingError and StateError.
    """
    contact: FirstContact | None = None
    if first_contact is not None:
        contact = parse_contact(first_contact, "--koi-join")
    return personality_node(
        name,
        f"{url}{PREFIX}",
        folder=state.root / "koi" / name,
        first_contact=contact,
        trust=settings.trust,
        known=settings.known,
        allow_private=allow_private,
    )


class KoiMember:
    """The node of one agent of this process, whose personality follows its record.

    With ``keep_on_stop`` the personality stays on the network when the agent stops.
    """

    def __init__(self, agent: Agent, url: str, node: KoiNode, *, keep_on_stop: bool = False) -> None:
        self.node = node
        self._agent = agent
        self._url = url
        self._keep_on_stop = keep_on_stop
        self._told: AgentPersonality | None = None
        self._changed = asyncio.Event()
        register_personality_handlers(
            node.processor, is_own=lambda rid: self._told is not None and rid == str(self._told)
        )

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """The KOI endpoints of the agent."""
        return routes(self.node)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Be on the network while inside; leaving takes the personality from it, unless it is to be kept.

        Raises InvalidSettingError for an agent whose name or version no RID can hold.
        """
        async with AsyncExitStack() as stack:
            await self.node.start()
            stack.push_async_callback(self.node.stop)
            await self._tell()
            stack.push_async_callback(self._leave)
            stack.callback(self._agent.changes.subscribe(self._note))
            following = asyncio.create_task(self._follow())
            stack.push_async_callback(_end, following)
            yield

    def _note(self, change: Change) -> None:
        if change.kind != "resource":
            self._changed.set()

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(_SETTLE_S)
            self._changed.clear()
            try:
                await self._tell()
            except (InvalidSettingError, StateError, WireError) as error:
                _log.warning("personality not told", agent=self._agent.name, reason=str(error))

    async def _tell(self) -> None:
        record = self._agent.record(self._url)
        profile = _render(record, self.node, mcp_url=self._url, execute=self._url)
        self._told = profile.rid
        await _publish(self.node, profile)

    async def _leave(self) -> None:
        if self._told is not None and not self._keep_on_stop:
            await self.node.forget([str(self._told)])


class KoiHub:
    """The node of a hub: it lists its network's personalities, and tells the network of the hub's agents.

    An agent that is not told because another node has its name is looked at again every ``look_again_s``.
    Members are asked every ``look_every_s`` whether they are there; ``clock`` measures their silence.
    """

    def __init__(
        self,
        look_again_s: float = _LOOK_AGAIN_S,
        *,
        look_every_s: float = LOOK_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look_again_s = look_again_s
        self._look_every_s = look_every_s
        self._clock = clock
        self.presence: Presence | None = None
        self.adapter = MCPAdapter()
        self.source = PersonalitySource(self.adapter, self._is_own)
        self.node: KoiNode | None = None
        self._url = ""
        self._changed = asyncio.Event()
        self._withheld: dict[str, tuple[str, str]] = {}
        """Agents that the network is not told of: the name in the directory → own name, and the reason."""

    def open(self, node: KoiNode, url: str) -> Sequence[BaseRoute]:
        """Take the hub's node, whose URL is known only now; returns its KOI endpoints."""
        self.node, self._url = node, url
        register_personality_handlers(node.processor, self.adapter, is_own=self._owns)
        return routes(node)

    @asynccontextmanager
    async def running(self, process: Process, *, evict_after_s: float = EVICT_AFTER_S) -> AsyncIterator[None]:
        """Be on the network while inside. The personalities of the cache are listed at once.

        Members that have not answered for ``evict_after_s`` are evicted; 0 = never. Raises StateError.
        """
        node, directory = self._opened(), process.get(Directory)
        async with AsyncExitStack() as stack:
            await node.start()
            stack.push_async_callback(node.stop)
            fill_adapter(self.adapter, node.cache)
            stack.callback(self.source.feed(directory))
            await directory.refresh(thorough=False)
            stack.callback(directory.subscribe(self._note))
            stack.callback(directory.on_forgotten(self._release))
            self._changed.set()
            self.presence = Presence(
                node,
                partial(mark_members, directory),
                evict_after_s=evict_after_s,
                look_every_s=self._look_every_s,
                clock=self._clock,
            )
            for work in (self._tell_all(directory), self.presence.run()):
                stack.push_async_callback(_end, asyncio.create_task(work))
            yield

    def describe(self) -> str:
        """Where the node answers, in a line; other nodes join it with this URL and RID."""
        known = len(self.adapter.agents)
        return f"KOI node at {self._url}{PREFIX}, {known} personalities known, RID {self._opened().rid}"

    def list_links(self) -> list[NetworkLink]:
        """The edges of the hub's node."""
        if self.node is None:
            return []
        graph, own = self.node.graph, str(self.node.rid)
        links = []
        for rid in graph.list_edges_of(own):
            edge = graph.find_edge(rid)
            if edge is not None:
                direction, other = ("in", edge.source) if edge.target == own else ("out", edge.target)
                profile = graph.find_node(other)
                url = "" if profile is None else profile.base_url or ""
                name = KoiNetNode.from_string(other).name
                is_silent = self.presence is not None and self.presence.is_silent(other)
                status = "silent" if is_silent else edge.status.value.lower()
                links.append(NetworkLink(name, url, direction, status))
        return sorted(links, key=lambda link: (link.name, link.direction))

    def _opened(self) -> KoiNode:
        if self.node is None:
            raise RuntimeError("the hub's node is not open")
        return self.node

    def _is_own(self, profile: PersonalityProfile) -> bool:
        return self.node is not None and str(profile.node_rid) == self.node.rid

    def _owns(self, rid: str) -> bool:
        held = self.adapter.find(AgentPersonality.from_string(rid))
        return held is not None and self._is_own(held.profile)

    def _note(self, change: ListingChange) -> None:
        if change.measured:
            return
        waits = any(name == change.entry.name for name, _ in self._withheld.values())
        if change.entry.source != KOI_SOURCE or waits:
            self._changed.set()

    def _release(self, name: str) -> bool:
        """Let another node take a name after its holder was forgotten by request."""
        if self.node is None or not self.node.policy.release_name(name):
            return False
        _log.info("name released", name=name)
        self._changed.set()
        return True

    async def _tell_all(self, directory: Directory) -> None:
        """Make the personalities of this node those of the directory's agents, again after each change.

        The death of a node that has a name is no change that is reported.
        """
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._look_again_s if self._withheld else None):
                    await self._changed.wait()
                    await asyncio.sleep(_SETTLE_S)
            self._changed.clear()
            try:
                await self._tell(directory)
            except StateError as error:
                _log.warning("personalities not told", reason=str(error))

    async def _tell(self, directory: Directory) -> None:
        node = self._opened()
        wanted: set[str] = set()
        withheld: dict[str, tuple[str, str]] = {}
        async for page in directory.iterate_pages():
            for listing in directory.open_all([entry for entry in page if entry.source != KOI_SOURCE]):
                place, name = directory.name_of(listing), listing.record.name
                if (reason := await self._tell_one(node, place, listing, wanted)) is not None:
                    withheld[place] = name, reason
                    if self._withheld.get(place) != withheld[place]:
                        _log.warning("agent has no personality", agent=place, reason=reason)
        self._withheld = withheld
        held = [agent.profile for agent in self.adapter.list_held() if self._is_own(agent.profile)]
        gone = [str(profile.rid) for profile in held if str(profile.rid) not in wanted]
        if gone:
            await node.forget(gone)

    async def _tell_one(self, node: KoiNode, place: str, listing: Listing, told: set[str]) -> str | None:
        """Announce the agent with the directory name ``place`` on the network; the reason if that is refused.

        It keeps its own name, so a name is one node's on the network. ``told`` gets its RID.
        """
        through = f"{self._url}/agents/{quote(place, safe='')}"
        try:
            profile = _render(listing.record, node, mcp_url=through, execute=through)
            rid = str(profile.rid)
            if rid in told:
                return "another agent of this hub has its name and version"
            holder = await node.policy.find_other_holder(profile.rid.name)
            if holder is not None:
                return f"the name belongs to {holder}, which is alive; rename one of the two agents"
            await _publish(node, profile)
        except (InvalidSettingError, WireError) as error:
            return str(error)
        told.add(rid)
        return None


def _render(record: AgentRecord, node: KoiNode, *, mcp_url: str, execute: str) -> PersonalityProfile:
    """The profile of an agent that is reached at these URLs; raises InvalidSettingError."""
    endpoints = (Endpoint("execute", execute),)
    try:
        return render_profile(
            replace(record, version=record.version or DEFAULT_VERSION, endpoints=endpoints),
            KoiNetNode.from_string(node.rid),
            base_url=node.state.identity.profile.base_url,
            mcp_url=mcp_url,
        )
    except ValueError as error:
        raise InvalidSettingError(
            f"agent {record.name}", str(error), remedy="give it a shorter name and a version without a slash"
        ) from error


async def _publish(node: KoiNode, profile: PersonalityProfile) -> None:
    """Let the node process its own profile unless its cache has it. Raises StateError, WireError."""
    contents = profile.model_dump()
    held = node.cache.read(profile.rid)
    if held is not None and held.contents == contents:
        return
    kind = EventType.NEW if held is None else EventType.UPDATE
    await node.processor.handle(bundle=node.state.generate_bundle(profile.rid, contents), event_type=kind)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
