"""A node of a KOI network: identity, cache, graph, pipeline, delivery, and the answers to other nodes.

One node speaks both dialects: it answers in the dialect of a request, and asks in that of the node it asks.
Subclasses register handlers at `KoiNode.processor` and may override `KoiNode.receive_events`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from retinue.web.http_client import HttpClient
from retinue.web.transport import HttpRequester
from retinue_koi.background import BackgroundWork
from retinue_koi.codec.bundles import Dialect, Event, EventType, WireError
from retinue_koi.codec.orn import KoiNetNode
from retinue_koi.codec.payloads import (
    EventsPayload,
    FetchBundles,
    FetchManifests,
    FetchRids,
    PollEvents,
    Reply,
    Request,
    RidsPayload,
)
from retinue_koi.codec.profiles import EdgeType
from retinue_koi.codec.rids import PERSONALITY_TYPE
from retinue_koi.graph import NetworkGraph
from retinue_koi.handlers import register_node_handlers
from retinue_koi.introductions import CONTACT_ANSWERS_S
from retinue_koi.joining import Joining
from retinue_koi.knowledge import Handled, KnowledgeObject, KnowledgeSource
from retinue_koi.node_state import NodeState, NodeTypes
from retinue_koi.peers import FirstContact, NodeClient, normal_contact
from retinue_koi.pipeline import Processor
from retinue_koi.policy import Acceptance, Policy
from retinue_koi.questions import list_bundles, list_manifests
from retinue_koi.rules import Trust
from retinue_koi.steps import NodeSteps
from retinue_koi.storage.cache import KoiCache
from retinue_koi.wire import Messenger

ACKNOWLEDGE_S: Final = 2.0
"""How long a broadcast waits for its events to be processed."""

POLL_INTERVAL_S: Final = 5.0
LEAVE_S: Final = 2.0
"""How long a node that leaves waits until its neighbors know."""

log = structlog.get_logger("retinue.koi")


@dataclass
class Network:
    """``processor.network`` of handlers: the graph, and requests to other nodes."""

    graph: NetworkGraph
    request_handler: NodeClient


class KoiNode:
    """One node, used between `start` and `stop` in one event loop; its endpoints are `server.routes`.

    ``first_contact`` is the node to join, as its url or as ``URL#RID``. Without ``http`` the node has a
    client of its own. A PARTIAL node polls every ``poll_interval_s``. A first contact that has not answered
    after ``contact_answers_s`` is a warning in the log. A broadcast that is not processed within
    ``acknowledge_s`` is answered with 503. Raises InvalidSettingError.
    """

    def __init__(
        self,
        state: NodeState,
        acceptance: Acceptance,
        *,
        first_contact: FirstContact | str | None = None,
        http: HttpRequester | None = None,
        poll_interval_s: float = POLL_INTERVAL_S,
        contact_answers_s: float = CONTACT_ANSWERS_S,
        acknowledge_s: float = ACKNOWLEDGE_S,
    ) -> None:
        self.state = state
        self._own_http: HttpClient | None = None
        if http is None:
            http = self._own_http = HttpClient(allow_private=acceptance.allow_private_urls)
        contact = normal_contact(first_contact, "first_contact")
        peers = NodeClient(state.identity, state.graph, http, contact, heard=state.memory.hear)
        self.policy = Policy.of(state, peers, acceptance)
        self.wire = Messenger.of(state, peers, self.policy.rules, contact_answers_s=contact_answers_s)
        self.work = BackgroundWork(KoiNetNode.from_string(state.rid).name)
        self.joining = Joining(
            state, self.wire, self.policy, self.work, handle=self._handle_own, process=self.process
        )
        self._steps = NodeSteps(state, self.wire, self.policy, self.joining)
        self.processor = Processor(self._steps)
        self.processor.cache = state.cache
        self.processor.identity = state.identity
        self.processor.network = Network(state.graph, peers)
        self._poll_interval_s = poll_interval_s
        self._acknowledge_s = acknowledge_s
        self.is_running = False
        """Whether the node takes requests of others: between `start` and `stop`."""
        register_node_handlers(self.processor, state, self.wire, self.joining)

    @property
    def rid(self) -> str:
        return self.state.rid

    @property
    def cache(self) -> KoiCache:
        return self.state.cache

    @property
    def graph(self) -> NetworkGraph:
        return self.state.graph

    # Start and stop

    async def start(self) -> None:
        """Load the cache, process the own profile, then join the network in the background.

        Raises StateError if the folder cannot be used.
        """
        await self.state.load()
        if self._own_http is not None:
            await self._own_http.__aenter__()
        self._steps.load()
        for rid in self.graph.list_nodes():
            self.wire.introductions.recognise_contact(rid)
        self.processor.start()
        self.is_running = True
        await self._handle_own_profile()
        self.wire.outbox.start()
        self.work.spawn(self.joining.join())
        if self.state.is_partial:
            self.work.spawn(self.joining.poll(self._poll_interval_s))

    async def stop(self) -> None:
        """End all work and write the cache; unsent events wait for the next start."""
        self.is_running = False
        await self.work.stop()
        await self.wire.outbox.stop()
        await self.processor.stop()
        await self.cache.close()
        if self._own_http is not None:
            await self._own_http.close()

    async def forget(self, rids: Sequence[str], within_s: float = LEAVE_S) -> None:
        """Take own objects from the network: tell the neighbors, and wait this long until they know."""
        neighbors = self.graph.get_neighbors()
        for rid in rids:
            await self.processor.handle(rid=rid, event_type=EventType.FORGET)
        await asyncio.gather(*(self.wire.outbox.flushed(neighbor, within_s) for neighbor in neighbors))

    def _handle_own(self, kobj: KnowledgeObject) -> Handled:
        return self.processor.handle(kobj=kobj)

    async def _handle_own_profile(self) -> None:
        held = self.cache.read(self.rid)
        contents = self.state.identity.profile.render()
        if held is None or held.contents != contents:
            bundle = self.state.generate_bundle(self.rid, contents)
            await self.processor.handle(bundle=bundle, event_type=EventType.NEW)

    # Answers to other nodes

    async def answer(
        self, request: Request, source: str | None, dialect: Dialect, *, replayed: bool = False
    ) -> Reply | None:
        """Answer a request whose sender, if it is known, has been checked; None for a broadcast.

        Raises WireError, PermissionError, BusyError, TimeoutError, StateError.
        """
        if isinstance(request, EventsPayload):
            for refusal in request.refused:
                log.warning("koi_event_refused", rid=refusal.rid, reason=refusal.reason, node=source)
            await self.receive_events(request.events, source, dialect, replayed=replayed)
            return None
        if self.policy.rules.terms.trust == "known" and source is None:
            raise PermissionError("this node answers signed requests of nodes that it knows")
        match request:
            case PollEvents(limit, rid):
                node = source or rid
                if node is None:
                    raise WireError("rid: a poll needs the RID of the polling node")
                if source is None and not self._may_poll_unsigned(node):
                    return EventsPayload(())
                self.state.memory.hear(node)
                return EventsPayload(tuple(self.wire.outbox.take(node, limit, dialect)))
            case FetchRids(rid_types):
                return RidsPayload(tuple(self.cache.list_rids(rid_types)))
            case FetchManifests(rid_types, rids):
                return list_manifests(self.cache, rids or self.cache.list_rids(rid_types), dialect)
            case FetchBundles(rids):
                return list_bundles(self.cache, rids, dialect)

    def _may_poll_unsigned(self, node: str) -> bool:
        """Whether events may wait for an unsigned poll of a node. Raises PermissionError if it must sign."""
        if self.state.memory.has_proved(node):
            raise PermissionError(
                f"{node} has signed messages, so it must sign its polls; give it the RID of this node"
            )
        edge_rid = self.graph.get_edge(self.rid, node)
        edge = self.graph.find_edge(edge_rid) if edge_rid is not None else None
        return edge is None or edge.edge_type is not EdgeType.WEBHOOK

    async def receive_events(
        self, events: Sequence[Event], source: str | None, dialect: Dialect, *, replayed: bool = False
    ) -> None:
        """Take the events of a broadcast; returns when they are processed and kept, within `ACKNOWLEDGE_S`.

        Raises BusyError and TimeoutError if they are not, StateError if they cannot be kept: the sender must
        send them again.
        """
        await self.process(events, source, dialect, replayed=replayed)

    async def process(
        self, events: Sequence[Event], source: str | None, dialect: Dialect, *, replayed: bool = False
    ) -> None:
        if not events:
            return
        reset: set[str] = set()
        if dialect == "unsigned":
            async with asyncio.timeout(self._acknowledge_s):
                events, reset = await self.joining.meet_again(events)
        handled = Handled(len(events))
        external = KnowledgeSource.External
        self.processor.handle_all(
            [
                KnowledgeObject(
                    event.rid,
                    event.manifest,
                    event.contents,
                    event.event_type,
                    external,
                    source,
                    dialect,
                    handled=handled,
                    replayed=replayed,
                    asked=("gone",) if event.rid in reset else (),
                )
                for event in events
            ]
        )
        try:
            async with asyncio.timeout(self._acknowledge_s):
                await handled
        except TimeoutError:
            if not handled.only_asked_left:
                raise


def personality_node(
    name: str,
    base_url: str,
    *,
    folder: Path | None = None,
    first_contact: FirstContact | str | None = None,
    trust: Trust | None = None,
    known: Iterable[str] = (),
    allow_private: bool = True,
) -> KoiNode:
    """A FULL node that provides personalities and subscribes to them.

    ``base_url`` and ``folder`` are those of `NodeState.of`, ``trust`` and ``known`` those of `Acceptance`.
    Raises InvalidSettingError and StateError.
    """
    types = (PERSONALITY_TYPE,)
    state = NodeState.of(name, NodeTypes(types, types, types), base_url=base_url, folder=folder)
    return KoiNode(state, Acceptance(trust, known, (), allow_private), first_contact=first_contact)
