"""Joins a network: introduces the node, subscribes, fetches missed objects, polls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from retinue.core.errors import StateError
from retinue_koi.background import BackgroundWork
from retinue_koi.codec.bundles import Dialect, Event, EventType, Manifest
from retinue_koi.codec.payloads import EventsPayload, PollEvents
from retinue_koi.codec.profiles import EdgeProfile, EdgeStatus, EdgeType, NodeProfile, NodeType
from retinue_koi.codec.rids import edge_rids, type_of
from retinue_koi.knowledge import Handled, KnowledgeObject, KnowledgeSource
from retinue_koi.node_state import NodeState
from retinue_koi.peers import BUNDLES_AT_ONCE, NodeAddress, PeerError
from retinue_koi.pipeline import PipelineFullError
from retinue_koi.policy import Policy
from retinue_koi.questions import find_met_again
from retinue_koi.wire import Messenger

_ANSWER_WITHIN_S: Final = 1.5
"""How long a node that introduces itself again has to say what it still has."""

_MAX_ASKED: Final = 1_000

_RETRY_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)

log = structlog.get_logger("retinue.koi")

Handle = Callable[[KnowledgeObject], Handled]
"""Lets the pipeline process an object of this node."""

Process = Callable[[Sequence[Event], str | None, Dialect], Awaitable[None]]
"""Processes the events that another node, by its RID, has given in this dialect."""


def lost_edge(edge: str, node: str) -> KnowledgeObject:
    """The removal of an edge that the other node has lost itself.

    The other node is not told: it may have proposed the edge again meanwhile, under the same RID.
    """
    source = KnowledgeSource.External
    return KnowledgeObject(edge, None, None, EventType.FORGET, source, node, settled=True)


class Joining:
    """Joins the first contact, and subscribes to the objects that each contacted node provides."""

    def __init__(
        self,
        state: NodeState,
        wire: Messenger,
        policy: Policy,
        work: BackgroundWork,
        *,
        handle: Handle,
        process: Process,
    ) -> None:
        self._state = state
        self._wire = wire
        self._policy = policy
        self._work = work
        self._handle = handle
        self._process = process
        self._asked: dict[str, int] = {}
        """Nodes that have asked what this one has → the changes until then, -1 if they were refused."""
        self._changes = 0
        wire.introductions.introduced = self.propose_again

    async def meet_again(self, events: Sequence[Event]) -> tuple[Sequence[Event], set[str]]:
        """Judge unsigned introductions of known nodes: ask each node which of its objects it still has.

        Edges that such a node has lost are made again. Returns the events without the FORGET of the nodes
        that answered, and the nodes that did not: their FORGET is to be obeyed.
        Raises BusyError if a node that signs does not answer.
        """
        graph, questions = self._state.graph, self._policy.questions
        reset, answered = set(), set()
        for rid in find_met_again(graph, events):
            edges = graph.list_edges_of(rid)
            kept = await questions.find_kept(rid, edges, _ANSWER_WITHIN_S) if edges else None
            if kept is not None:
                answered.add(rid)
                await self._renew_edges(rid, [edge for edge in edges if edge not in kept])
            elif edges and self._state.memory.has_proved(rid):
                raise PipelineFullError(
                    f"{rid} does not say whether it still has its edges; send it again later"
                )
            else:
                reset.add(rid)
        if not answered:
            return events, reset
        left = [e for e in events if e.event_type is not EventType.FORGET or e.rid not in answered]
        return left, reset

    async def _renew_edges(self, rid: str, lost: Sequence[str]) -> None:
        """Create the edges again that another node has lost."""
        profile = self._state.graph.find_node(rid)
        if not lost or profile is None:
            reason = f"{rid} still has its edges with this node"
            log.warning("koi_event_refused", rid=rid, event_type="FORGET", node=None, reason=reason)
            return
        for edge in lost:
            await self._handle(lost_edge(edge, rid))
        self._wire.outbox.push(rid, self._state.rid, EventType.NEW)
        self.subscribe(rid, profile)

    def forget_introduction(self, rid: str) -> None:
        """Forget the introduction to a removed node, so that it gets another when it returns."""
        self._wire.introductions.forget(rid)
        if rid in self._asked:
            self._asked[rid] = -1  # what waited for it is dropped

    async def join(self) -> None:
        """Catch up with the providers that are known, and join the first contact, until it answers."""
        for rid in self._state.graph.list_nodes():
            profile = self._state.graph.find_node(rid)
            if rid != self._state.rid and profile is not None:
                self.subscribe(rid, profile)
        address = self._wire.peers.contact_address()
        if address is None:
            return
        for attempt in range(10**9):
            address = self._wire.peers.contact_address() or address
            if address.rid and self._state.graph.get_edge(address.rid, self._state.rid):
                if attempt:  # it has answered an attempt that seemed to fail
                    self.propose_again(address.rid)
                return
            try:
                await self._wire.introductions.introduce(address)
                await self._wire.introductions.wait_for_contact(address)
                return
            except PeerError as error:
                if attempt < len(_RETRY_S) or attempt % 10 == 0:
                    problem = {"url": address.url, "reason": str(error), "remedy": error.remedy}
                    log.warning("koi_handshake_failed", **problem)
            await asyncio.sleep(_RETRY_S[min(attempt, len(_RETRY_S) - 1)])

    def subscribe(self, rid: str, profile: NodeProfile) -> None:
        """Propose an edge to a provider of types of interest, and fetch its objects; a fitting edge stays."""
        types = tuple(t for t in self._state.interest if t in profile.event)
        if profile.node_type is not NodeType.FULL or not types or rid == self._state.rid:
            return
        held = self._state.graph.get_edge(rid, self._state.rid)
        edge = self._state.graph.find_edge(held) if held is not None else None
        if edge is None or set(edge.rid_types) != set(types):
            self._propose(rid, profile, types, held)
        self.follow_up(rid, types)

    def propose_again(self, rid: str) -> None:
        """Propose the own edge with a provider again, if there is one: the provider may have ended it.

        An introduction ends all edges at its receiver. An edge that was made before the introduction arrived,
        because the receiver has introduced itself at the same time, would be left at this node only.
        """
        held, profile = self._state.graph.get_edge(rid, self._state.rid), self._state.graph.find_node(rid)
        edge = self._state.graph.find_edge(held) if held is not None else None
        if held is None or edge is None or profile is None:
            return
        if edge.status is not EdgeStatus.PROPOSED:
            self._propose(rid, profile, edge.rid_types, held)
            return
        try:
            self._wire.outbox.push(rid, held, EventType.NEW)
        except StateError as error:
            log.warning("koi_object_not_kept", rid=held, reason=str(error))

    def _propose(self, rid: str, profile: NodeProfile, types: Sequence[str], held: str | None) -> None:
        """Propose an edge for these types, in the place of the one that is held."""
        kind = EdgeType.POLL if self._state.is_partial else EdgeType.WEBHOOK
        proposed = EdgeProfile(rid, self._state.rid, kind, EdgeStatus.PROPOSED, tuple(types))
        signed, unsigned = edge_rids(rid, self._state.rid)
        signs = self._wire.peers.address_of(rid, profile).dialect == "signed"
        bundle = self._state.generate_bundle(held or (signed if signs else unsigned), proposed.render())
        self._handle(KnowledgeObject(bundle.rid, bundle.manifest, bundle.contents))

    def follow_up(self, rid: str, types: Sequence[str]) -> None:
        """Catch up with a provider in the background."""
        self._work.spawn(self.catch_up(rid, types))

    async def catch_up(self, rid: str, types: Sequence[str]) -> None:
        """Fetch the objects from a provider that this node lacks or has in an older state."""
        await self._wire.outbox.flushed(rid, 10.0)
        manifests: tuple[Manifest, ...] = ()
        for pause_s in _RETRY_S[:6]:
            try:
                manifests = await self._wire.peers.fetch_manifests(rid, types)
                break
            except PeerError as error:
                log.info("koi_catch_up_failed", node=rid, reason=str(error))
                if error.fault == "unknown_node":
                    await self._wire.introductions.introduce_again(rid)
            await asyncio.sleep(pause_s)
        rids = [m.rid for m in manifests if type_of(m.rid) in types and self._is_news(m)]
        dialect: Dialect = (self._wire.peers.find_address(rid) or NodeAddress("", None, "unsigned")).dialect
        for start in range(0, len(rids), BUNDLES_AT_ONCE):
            try:
                bundles = await self._wire.peers.fetch_bundles(rid, rids[start : start + BUNDLES_AT_ONCE])
            except PeerError as error:
                log.warning("koi_catch_up_failed", node=rid, reason=str(error))
                return
            events = [Event.from_bundle(EventType.NEW, bundle) for bundle in bundles]
            await self._process(events, rid, dialect)

    def _is_news(self, manifest: Manifest) -> bool:
        entry = self._state.cache.find_entry(manifest.rid)
        return entry is None or (
            entry.manifest.sha256_hash != manifest.sha256_hash and entry.instant_us < manifest.instant_us
        )

    def note_change(self) -> None:
        """What this node tells subscribers has changed."""
        self._changes += 1

    def note_catching_up(self, rid: str, *, refused: bool) -> None:
        """Note a node's request for the list; a koi-net 2.x node asks once, before it subscribes."""
        self._asked.pop(rid, None)
        self._asked[rid] = -1 if refused else self._changes
        if len(self._asked) > _MAX_ASKED:
            del self._asked[next(iter(self._asked))]

    def make_up(self, rid: str, types: Sequence[str]) -> None:
        """Send a new subscriber the events since it asked for the list. Raises StateError."""
        if self._asked.get(rid, self._changes) == self._changes:
            return
        self._asked[rid] = self._changes
        event_types = [rid_type for rid_type in types if rid_type in self._state.identity.profile.event]
        for held in self._state.cache.list_rids(event_types) if event_types else ():
            entry = self._state.cache.find_entry(held)
            if entry is not None and entry.owner != rid:
                self._wire.outbox.push(rid, held, EventType.NEW)

    async def poll(self, interval_s: float) -> None:
        """Take events from the providers that this node has edges with, or from its first contact."""
        while True:
            await asyncio.sleep(interval_s)
            await self.poll_once()

    async def poll_once(self) -> None:
        """Poll each provider once."""
        contact = self._wire.peers.contact_address()
        addresses = [
            self._wire.peers.find_address(rid) for rid in self._state.graph.get_neighbors(direction="in")
        ]
        for address in [a for a in addresses if a is not None] or ([contact] if contact else []):
            try:
                reply = await self._wire.peers.request(address, PollEvents(0, self._state.rid))
            except PeerError as error:
                log.info("koi_poll_failed", url=address.url, reason=str(error))
                continue
            if isinstance(reply, EventsPayload):
                await self._process(reply.events, address.rid, address.dialect)
