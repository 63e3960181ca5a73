"""A node of a KOI network: identity, cache, graph, pipeline, delivery, and the answers to other nodes.

One node speaks both dialects: it answers in the dialect of a request, and asks in that of the node it asks.
Subclasses register handlers at `KoiNode.processor` and may override `KoiNode.receive_events`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog

from retinue.koi.codec.bundles import Bundle, Dialect, Event, EventType, WireError, to_instant
from retinue.koi.codec.payloads import (
    EventsPayload,
    FetchBundles,
    FetchManifests,
    FetchRids,
    PollEvents,
    Reply,
    Request,
    RidsPayload,
)
from retinue.koi.codec.profiles import EdgeType, NodeProfile, NodeType
from retinue.koi.codec.rids import PERSONALITY_TYPE, type_name
from retinue.koi.graph import GRAPH_TYPES, NetworkGraph
from retinue.koi.handlers import register_node_handlers
from retinue.koi.identity import check_name, load_identity, load_key
from retinue.koi.joining import Joining
from retinue.koi.knowledge import Handled, KnowledgeObject, KnowledgeSource
from retinue.koi.memory import NodeMemory
from retinue.koi.outbox import Outbox
from retinue.koi.peers import FirstContact, Peers, check_contact, parse_contact
from retinue.koi.pipeline import Processor
from retinue.koi.questions import Questions, list_bundles, list_manifests
from retinue.koi.rules import Rules, Trust, default_trust
from retinue.koi.steps import NodeSteps
from retinue.koi.storage.cache import KoiCache
from retinue.web.http_client import HttpClient
from retinue.web.transport import HttpRequester

ACKNOWLEDGE_S: Final = 2.0
"""How long a broadcast waits for its events to be processed."""

POLL_INTERVAL_S: Final = 5.0

log = structlog.get_logger("retinue.koi")


@dataclass
class Network:
    """What handlers reach as ``processor.network``: the graph, and requests to other nodes."""

    graph: NetworkGraph
    request_handler: Peers


class KoiNode:
    """One node, used between `start` and `stop` in one event loop; its endpoints are `server.routes`.

    ``base_url`` is where it answers, with the path: ``http://127.0.0.1:9000/koi-net``. Without it the node
    is PARTIAL and polls. Identity and cache are in ``folder``, by default ``.koi/{name}`` below the
    working directory. ``first_contact`` is the node to join, as its url or as ``URL#RID``. ``event`` and
    ``state`` are the RID types (texts or classes) that it provides, ``interest`` those that it subscribes to.
    ``known`` are RIDs or names of nodes for the policy ``known``; ``relays`` RIDs of nodes that may pass on
    what others own.
    Raises InvalidSettingError and StateError.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        folder: Path | None = None,
        event: Iterable[Any] = (),
        state: Iterable[Any] = (),
        interest: Iterable[Any] = (),
        first_contact: FirstContact | str | None = None,
        trust: Trust | None = None,
        known: Iterable[str] = (),
        relays: Iterable[str] = (),
        http: HttpRequester | None = None,
        allow_private_urls: bool = True,
        poll_interval_s: float = POLL_INTERVAL_S,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        check_name(name)
        self.name = name
        self.folder = folder or Path(".koi") / name
        self.interest = tuple(type_name(rid_type) for rid_type in interest)
        key = load_key(self.folder)
        profile = NodeProfile(
            NodeType.FULL if base_url else NodeType.PARTIAL,
            base_url.rstrip("/") if base_url else None,
            tuple(type_name(rid_type) for rid_type in event),
            tuple(type_name(rid_type) for rid_type in state),
            key.public_key,
        )
        self.identity = load_identity(self.folder, name, key, profile)
        self.rid = self.identity.rid
        self.now = now
        self.cache = KoiCache(self.folder / "cache")
        self.graph = NetworkGraph(self.rid)
        contact = first_contact
        if isinstance(contact, str):
            contact = parse_contact(contact, "first_contact")
        elif contact is not None:
            check_contact(contact.url, "first_contact")
        self.first_contact = contact and replace(contact, url=contact.url.rstrip("/"))
        self._own_http: HttpClient | None = None
        if http is None:
            http = self._own_http = HttpClient(allow_private=allow_private_urls)
        self.peers = Peers(self.identity, self.graph, http, self.first_contact)
        self.memory = NodeMemory(self.rid, self.cache)
        self.peers.heard = self.memory.hear
        self.questions = Questions(self.rid, self.peers, self.graph, self.memory)
        self.joining = Joining(self)
        self.outbox = Outbox(self.cache, self.peers, self.joining.introduce_again)
        self.relays = {*relays, *([contact.rid] if contact and contact.rid else [])}
        self.trust: Trust = trust or default_trust(base_url)
        self.rules = Rules(
            self.rid,
            base_url,
            self.cache,
            self.graph,
            self.trust,
            frozenset({*GRAPH_TYPES, *profile.event, *profile.state, *self.interest}),
            self.memory.was_seen,
            self.memory.has_proved,
            lambda: to_instant(self.now()),
            self.relays,
            self.first_contact.url if self.first_contact and not self.first_contact.rid else None,
            frozenset(known),
            allow_private_urls,
        )
        self._steps = NodeSteps(self)
        self.processor = Processor(self._steps)
        self.processor.cache = self.cache
        self.processor.identity = self.identity
        self.processor.network = Network(self.graph, self.peers)
        self.poll_interval_s = poll_interval_s
        self._tasks: set[asyncio.Task[None]] = set()
        register_node_handlers(self)

    # Start and stop

    async def start(self) -> None:
        """Load the cache, process the own profile, then join the network in the background.

        Raises StateError if the folder cannot be used.
        """
        await asyncio.to_thread(self.cache.open)
        if self._own_http is not None:
            await self._own_http.__aenter__()
        self.graph.load(self.cache)
        self._steps.load()
        self.memory.load()
        for rid in self.graph.list_nodes():
            self.joining.recognise_contact(rid)
        self.processor.start()
        await self._handle_own_profile()
        self.outbox.start()
        self.spawn(self.joining.join())
        if self.identity.profile.node_type is NodeType.PARTIAL:
            self.spawn(self.joining.poll())

    async def stop(self) -> None:
        """End all work and write the cache; what could not be sent waits for the next start."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.outbox.stop()
        await self.processor.stop()
        await self.cache.close()
        if self._own_http is not None:
            await self._own_http.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work beside the pipeline until the node stops; what it raises is logged."""
        task = asyncio.get_running_loop().create_task(self._guard(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # for a task that never ran

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            log.warning("koi_task_failed", node=self.name, reason=repr(error), exc_info=True)

    async def _handle_own_profile(self) -> None:
        held = self.cache.read(self.rid)
        contents = self.identity.profile.render()
        if held is None or held.contents != contents:
            after_us = held.manifest.instant_us if held is not None else 0
            bundle = Bundle.generate(self.rid, contents, now=self.now(), after_us=after_us)
            await self.processor.handle(bundle=bundle, event_type=EventType.NEW)

    def generate_bundle(self, rid: object, contents: dict[str, Any]) -> Bundle:
        """A bundle of these contents that is later than the one in the cache."""
        entry = self.cache.find_entry(rid)
        return Bundle.generate(rid, contents, now=self.now(), after_us=entry.instant_us if entry else 0)

    # Answers to other nodes

    async def answer(
        self, request: Request, source: str | None, dialect: Dialect, *, replayed: bool = False
    ) -> Reply | None:
        """Answer a request whose sender, if it is known, has been checked; None for a broadcast.

        Raises WireError, PermissionError, BusyError, TimeoutError, StateError.
        """
        if isinstance(request, EventsPayload):
            for one in request.refused:
                log.warning("koi_event_refused", rid=one.rid, reason=one.reason, node=source)
            await self.receive_events(request.events, source, dialect, replayed=replayed)
            return None
        if self.trust == "known" and source is None:
            raise PermissionError("this node answers signed requests of nodes that it knows")
        match request:
            case PollEvents(limit, rid):
                node = source or rid
                if node is None:
                    raise WireError("rid: a poll needs the RID of the polling node")
                if source is None and not self._may_poll_unsigned(node):
                    return EventsPayload(())
                self.memory.hear(node)
                return EventsPayload(tuple(self.outbox.take(node, limit, dialect)))
            case FetchRids(rid_types):
                return RidsPayload(tuple(self.cache.list_rids(rid_types)))
            case FetchManifests(rid_types, rids):
                return list_manifests(self.cache, rids or self.cache.list_rids(rid_types), dialect)
            case FetchBundles(rids):
                return list_bundles(self.cache, rids, dialect)

    def _may_poll_unsigned(self, node: str) -> bool:
        """Whether events may wait for an unsigned poll of a node. Raises PermissionError if it must sign."""
        if self.memory.has_proved(node):
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
            async with asyncio.timeout(ACKNOWLEDGE_S):
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
            async with asyncio.timeout(ACKNOWLEDGE_S):
                await handled
        except TimeoutError:
            if not handled.only_asked_left:
                raise

    # Names

    async def find_other_holder(self, name: str) -> str | None:
        """The other node that the name of a personality belongs to, if that node is alive."""
        holder = self.rules.names.get(name)
        if holder is None or holder == self.rid:
            return None
        return holder if await self.questions.is_alive(holder) else None

    def release_name(self, name: str) -> bool:
        """Let another node take the name of a personality; False if no other node has it."""
        if self.rules.names.get(name) in (None, self.rid):
            return False
        del self.rules.names[name]
        return True


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
    """A FULL node that provides personalities and subscribes to them; the arguments are those of `KoiNode`.

    Raises InvalidSettingError and StateError.
    """
    types = (PERSONALITY_TYPE,)
    return KoiNode(
        name,
        base_url=base_url,
        folder=folder,
        event=types,
        state=types,
        interest=types,
        first_contact=first_contact,
        trust=trust,
        known=known,
        allow_private_urls=allow_private,
    )
