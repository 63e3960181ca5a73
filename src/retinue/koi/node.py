"""A node of a KOI network: identity, cache, graph, pipeline, delivery, and the answers to other nodes.

One node speaks both dialects: it answers in the dialect of a request, and asks in that of the node it asks.
Subclasses register handlers at `KoiNode.processor` and may override `KoiNode.receive_events`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog

from retinue.koi.cache import KoiCache
from retinue.koi.codec.bundles import (
    Bundle,
    Dialect,
    Event,
    EventType,
    Manifest,
    WireError,
    encode_bundle,
    in_dialect,
    to_instant,
)
from retinue.koi.codec.payloads import (
    BundlesPayload,
    EventsPayload,
    FetchBundles,
    FetchManifests,
    FetchRids,
    ManifestsPayload,
    PollEvents,
    Reply,
    Request,
    RidsPayload,
)
from retinue.koi.codec.profiles import EdgeProfile, EdgeStatus, EdgeType, NodeProfile, NodeType
from retinue.koi.codec.rids import (
    NODE_TYPE,
    PERSONALITY_TYPE,
    edge_rids,
    name_of_personality,
    type_name,
    type_of,
)
from retinue.koi.graph import GRAPH_TYPES, NetworkGraph
from retinue.koi.handlers import register_node_handlers
from retinue.koi.identity import check_name, load_identity, load_key
from retinue.koi.outbox import Outbox
from retinue.koi.peers import BUNDLES_AT_ONCE, Address, FirstContact, PeerError, Peers, check_contact
from retinue.koi.pipeline import (
    Handled,
    KnowledgeObject,
    KnowledgeSource,
    PipelineSteps,
    Processor,
)
from retinue.koi.rules import (
    FORGOTTEN,
    FUTURE_US,
    SEEN_S,
    AskAlive,
    AskGone,
    AskOwner,
    Refuse,
    Rules,
    Trust,
    Verdict,
    default_trust,
)
from retinue.web.http_client import HttpClient
from retinue.web.transport import HttpRequester

ACKNOWLEDGE_S: Final = 2.0
"""How long a broadcast waits for its events to be processed."""

REPLY_BUNDLES: Final = 1000
REPLY_BYTES: Final = 3 * 1024 * 1024
POLL_INTERVAL_S: Final = 5.0

_ASKED_AT_ONCE: Final = 16
_MAX_HEARD: Final = 10_000
_MAX_FORGOTTEN: Final = 10_000
_MAX_SIGNATURES: Final = 5_000
_SIGNATURE: Final = "signature:"
_RETRY_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)

log = structlog.get_logger("retinue.koi")


@dataclass
class Network:
    """What handlers reach as ``processor.network``: the graph, and requests to other nodes."""

    graph: NetworkGraph
    request_handler: Peers


class KoiNode(PipelineSteps):
    """One node, used between `start` and `stop` in one event loop; its endpoints are `server.routes`.

    ``base_url`` is where it answers, with the path: ``http://127.0.0.1:9000/koi-net``. Without it the node
    is PARTIAL and polls. Identity and cache are in ``folder``, by default ``.koi/{name}`` below the
    working directory. ``first_contact`` is the node to join, as url or with its RID. ``event`` and ``state``
    are the RID types (texts or classes) that it provides, ``interest`` those that it subscribes to. ``known``
    are RIDs or names of nodes for the policy ``known``; ``relays`` RIDs of nodes that may pass on what others
    own.
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
        contact = FirstContact(first_contact) if isinstance(first_contact, str) else first_contact
        if contact is not None:
            check_contact(contact.url, "first_contact")
        self.first_contact = contact and replace(contact, url=contact.url.rstrip("/"))
        self._own_http: HttpClient | None = None
        if http is None:
            http = self._own_http = HttpClient(allow_private=allow_private_urls)
        self.peers = Peers(self.identity, self.graph, http, self.first_contact)
        self.peers.heard = self.hear
        self.outbox = Outbox(self.cache, self.peers, self._introduce_again)
        self.relays = {*relays, *([contact.rid] if contact and contact.rid else [])}
        self.trust: Trust = trust or default_trust(base_url)
        self.rules = Rules(
            self.rid,
            base_url,
            self.cache,
            self.graph,
            self.trust,
            frozenset({*GRAPH_TYPES, *profile.event, *profile.state, *self.interest}),
            self._was_seen,
            lambda: to_instant(self.now()),
            self.relays,
            self.first_contact.url if self.first_contact else None,
            frozenset(known),
            allow_private_urls,
        )
        self.processor = Processor(self)
        self.processor.cache = self.cache
        self.processor.identity = self.identity
        self.processor.network = Network(self.graph, self.peers)
        self._poll_interval_s = poll_interval_s
        self._heard: dict[str, float] = {}
        self._introduced: set[str] = set()
        self._signatures: dict[str, None] = {}
        self._forgotten: dict[str, None] = {}
        """Keys of the cache's notes, the oldest first."""
        self._versions: dict[str, int] = {}
        """How many personalities there are of each name."""
        self._asking = asyncio.Semaphore(_ASKED_AT_ONCE)
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
        for rid in self.cache.list_rids([PERSONALITY_TYPE]):
            entry = self.cache.find_entry(rid)
            name = name_of_personality(rid)
            self._versions[name] = self._versions.get(name, 0) + 1
            if entry is not None and entry.owner is not None:
                self.rules.names[name] = entry.owner
        for key in self.cache.notes:
            kind = self._signatures if key.startswith(_SIGNATURE) else self._forgotten
            kind[key] = None
        for rid in self.graph.list_nodes():
            self._recognise_contact(rid)
        self.processor.start()
        await self._handle_own_profile()
        self.outbox.start()
        self.spawn(self._join())
        if self.identity.profile.node_type is NodeType.PARTIAL:
            self.spawn(self._poll())

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

    # Joining

    async def introduce(self, address: Address) -> None:
        """Send the handshake: FORGET and NEW of the own profile. Raises PeerError."""
        own = self.cache.read(self.rid)
        if own is None:
            raise PeerError("the node has not started")
        events = (Event.from_rid(EventType.FORGET, self.rid), Event.from_bundle(EventType.NEW, own))
        await self.peers.broadcast_events(events=events, address=address)
        if address.rid is not None:
            self._introduced.add(address.rid)

    async def _introduce_again(self, target: str) -> None:
        address = self.peers.find_address(target)
        if address is not None:
            try:
                await self.introduce(address)
            except PeerError as error:
                log.warning("koi_handshake_failed", node=target, reason=str(error))

    def has_introduced_itself_to(self, rid: str) -> bool:
        return rid in self._introduced

    async def _join(self) -> None:
        """Catch up with the providers that are known, and join the first contact, until it answers."""
        for rid in self.graph.list_nodes():
            profile = self.graph.find_node(rid)
            if rid != self.rid and profile is not None:
                self.subscribe(rid, profile, again=True)
        address = self.peers.contact_address()
        if address is None or (address.rid and self.graph.get_edge(address.rid, self.rid)):
            return
        for attempt in range(10**9):
            try:
                await self.introduce(address)
                return
            except PeerError as error:
                if attempt < len(_RETRY_S) or attempt % 10 == 0:
                    log.warning("koi_handshake_failed", url=address.url, reason=str(error))
            await asyncio.sleep(_RETRY_S[min(attempt, len(_RETRY_S) - 1)])

    def subscribe(self, rid: str, profile: NodeProfile, *, again: bool = False) -> None:
        """Propose an edge to a provider of types of interest, and fetch what it has.

        ``again``: the node is known from an earlier run; an edge that exists is kept.
        """
        types = tuple(t for t in self.interest if t in profile.event)
        if profile.node_type is not NodeType.FULL or not types or rid == self.rid:
            return
        held = self.graph.get_edge(rid, self.rid)
        edge = self.graph.find_edge(held) if held is not None else None
        if edge is None or set(edge.rid_types) != set(types):
            kind = EdgeType.POLL if self.identity.profile.node_type is NodeType.PARTIAL else EdgeType.WEBHOOK
            proposed = EdgeProfile(rid, self.rid, kind, EdgeStatus.PROPOSED, types)
            signed, unsigned = edge_rids(rid, self.rid)
            signs = self.peers.address_of(rid, profile).dialect == "signed"
            edge_rid = held or (signed if signs else unsigned)
            self.processor.handle(bundle=self.generate_bundle(edge_rid, proposed.render()))
        self.spawn(self.catch_up(rid, types))

    async def catch_up(self, rid: str, types: Sequence[str]) -> None:
        """Fetch from a provider what this node does not have, or has in an older state."""
        await self.outbox.flushed(rid, 10.0)
        manifests: tuple[Manifest, ...] = ()
        for pause_s in _RETRY_S[:6]:
            try:
                manifests = await self.peers.fetch_manifests(rid, types)
                break
            except PeerError as error:
                log.info("koi_catch_up_failed", node=rid, reason=str(error))
                if error.fault == "unknown_node":
                    await self._introduce_again(rid)
            await asyncio.sleep(pause_s)
        wanted = [m.rid for m in manifests if type_of(m.rid) in types and self._is_news(m)]
        dialect: Dialect = (self.peers.find_address(rid) or Address("", None, "unsigned")).dialect
        for start in range(0, len(wanted), BUNDLES_AT_ONCE):
            try:
                bundles = await self.peers.fetch_bundles(rid, wanted[start : start + BUNDLES_AT_ONCE])
            except PeerError as error:
                log.warning("koi_catch_up_failed", node=rid, reason=str(error))
                return
            events = [Event.from_bundle(EventType.NEW, bundle) for bundle in bundles]
            await self._process(events, rid, dialect)

    def _is_news(self, manifest: Manifest) -> bool:
        entry = self.cache.find_entry(manifest.rid)
        return entry is None or (
            entry.manifest.sha256_hash != manifest.sha256_hash and entry.instant_us < manifest.instant_us
        )

    async def _poll(self) -> None:
        """Take events from the providers that this node has edges with, or from its first contact."""
        while True:
            await asyncio.sleep(self._poll_interval_s)
            await self.poll_once()

    async def poll_once(self) -> None:
        """Poll each provider once."""
        contact = self.peers.contact_address()
        addresses = [self.peers.find_address(rid) for rid in self.graph.get_neighbors(direction="in")]
        for address in [a for a in addresses if a is not None] or ([contact] if contact else []):
            try:
                reply = await self.peers.request(address, PollEvents(0, self.rid))
            except PeerError as error:
                log.info("koi_poll_failed", url=address.url, reason=str(error))
                continue
            if isinstance(reply, EventsPayload):
                await self._process(reply.events, address.rid, address.dialect)

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
                self.hear(node)
                return EventsPayload(tuple(self.outbox.take(node, limit, dialect)))
            case FetchRids(rid_types):
                return RidsPayload(tuple(self.cache.list_rids(rid_types)))
            case FetchManifests(rid_types, rids):
                return self._list_manifests(rids or self.cache.list_rids(rid_types), dialect)
            case FetchBundles(rids):
                return self._list_bundles(rids, dialect)

    async def receive_events(
        self, events: Sequence[Event], source: str | None, dialect: Dialect, *, replayed: bool = False
    ) -> None:
        """Take the events of a broadcast; returns when they are processed and kept, within `ACKNOWLEDGE_S`.

        Raises BusyError and TimeoutError if they are not, StateError if they cannot be kept: the sender must
        send them again.
        """
        await self._process(events, source, dialect, replayed=replayed)

    async def _process(
        self, events: Sequence[Event], source: str | None, dialect: Dialect, *, replayed: bool = False
    ) -> None:
        if not events:
            return
        handled = Handled(len(events))
        external = KnowledgeSource.External
        met_again = self._find_met_again(events) if dialect == "unsigned" else set()
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
                    asked=("gone",) if event.rid in met_again else (),
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

    def _find_met_again(self, events: Sequence[Event]) -> set[str]:
        """Nodes that introduce themselves again as they are known: their FORGET only resets their edges."""
        found = set()
        for event in events:
            held = self.graph.find_node(event.rid)
            if held is not None and event.event_type is EventType.NEW and event.contents is not None:
                with suppress(WireError):
                    if NodeProfile.parse(event.contents) == held:
                        found.add(event.rid)
        return found

    def _list_manifests(self, rids: Iterable[str], dialect: Dialect) -> ManifestsPayload:
        manifests, not_found = [], []
        for rid in rids:
            entry = self.cache.find_entry(rid)
            if entry is None:
                not_found.append(rid)
            elif entry.same_in_both:
                manifests.append(entry.manifest)
            elif (bundle := self.cache.read(rid)) is not None:
                manifests.append(in_dialect(bundle, dialect).manifest)
        return ManifestsPayload(tuple(manifests), tuple(not_found))

    def _list_bundles(self, rids: Sequence[str], dialect: Dialect) -> BundlesPayload:
        bundles: list[Bundle] = []
        not_found: list[str] = []
        size = 0
        for position, rid in enumerate(rids):
            bundle = self.cache.read(rid)
            if bundle is None:
                not_found.append(rid)
                continue
            size += len(encode_bundle(bundle))
            if bundles and (size > REPLY_BYTES or len(bundles) >= REPLY_BUNDLES):
                return BundlesPayload(tuple(bundles), tuple(not_found), tuple(rids[position:]))
            bundles.append(in_dialect(bundle, dialect))
        return BundlesPayload(tuple(bundles), tuple(not_found))

    # Who was heard

    def hear(self, rid: str) -> None:
        """Note that a node has just answered or sent a signed request."""
        self._heard[rid] = time.monotonic()
        if len(self._heard) > _MAX_HEARD:
            del self._heard[min(self._heard, key=self._heard.__getitem__)]

    def _was_seen(self, rid: str) -> bool:
        if rid == self.rid:
            return True
        heard = self._heard.get(rid)
        return heard is not None and time.monotonic() - heard < SEEN_S

    def note_signature(self, signature_id: str) -> bool:
        """Whether a signed message that takes something away came before; from now on it has.

        Raises StateError.
        """
        key = f"{_SIGNATURE}{signature_id}"
        if key in self._signatures:
            return True
        self._keep_note(self._signatures, key, 1, _MAX_SIGNATURES)
        return False

    def _keep_note(self, kept: dict[str, None], key: str, value: int, limit: int) -> None:
        """Keep a note in the cache; the oldest of its kind goes."""
        self.cache.note(key, value)
        kept[key] = None
        if len(kept) > limit:
            oldest = next(iter(kept))
            self.cache.note(oldest, None)
            del kept[oldest]

    async def find_other_holder(self, name: str) -> str | None:
        """The other node that the name of a personality belongs to, if that node is alive."""
        holder = self.rules.names.get(name)
        if holder is None or holder == self.rid:
            return None
        return holder if await self._is_alive(holder) else None

    def release_name(self, name: str) -> bool:
        """Let another node take the name of a personality; False if it was not bound."""
        return self.rules.names.pop(name, None) is not None

    # Steps of the pipeline

    def is_stale(self, kobj: KnowledgeObject) -> bool:
        held = self.cache.find_entry(kobj.rid_text)
        manifest = kobj.manifest
        if held is None or manifest is None:
            kobj.normalized_event_type = EventType.NEW
            return False
        kobj.normalized_event_type = EventType.UPDATE
        if manifest.sha256_hash == held.manifest.sha256_hash:
            return True
        instant = manifest.instant_us
        if instant > held.instant_us or "owner" in kobj.asked:
            return False
        dated_ahead = held.instant_us > to_instant(self.now()) + FUTURE_US
        if dated_ahead and kobj.rid_type == PERSONALITY_TYPE and not kobj.settled:
            return False
        if instant == held.instant_us and not held.same_in_both and kobj.contents is not None:
            bundle = self.cache.read(kobj.rid_text)
            if bundle is not None and bundle.contents == kobj.contents:
                return True  # the same, with the hash of the other dialect
        self._refuse(kobj, f"it is of {manifest.timestamp}; this node has {held.manifest.timestamp}")
        return True

    def settle(self, kobj: KnowledgeObject) -> Awaitable[bool] | bool:
        if kobj.source is KnowledgeSource.Internal:
            kobj.settled = True
            return True
        verdict = self.rules.judge(kobj)
        if verdict is None:
            kobj.settled = True
            return True
        if isinstance(verdict, Refuse):
            self._refuse(kobj, verdict.reason)
            return False
        return self._ask(kobj, verdict)

    def _refuse(self, kobj: KnowledgeObject, reason: str) -> None:
        log.warning(
            "koi_event_refused",
            rid=kobj.rid_text,
            event_type=kobj.event_type and kobj.event_type.value,
            node=kobj.source_node,
            reason=reason,
        )

    async def _ask(self, kobj: KnowledgeObject, verdict: Verdict) -> bool:
        """Ask the nodes that a verdict names, until the object is accepted or refused."""
        while verdict is not None:
            async with self._asking:
                match verdict:
                    case Refuse(reason):
                        problem: str | None = reason
                    case AskOwner(owner):
                        problem = await self._take_from_owner(kobj, owner)
                        kobj.asked += ("owner",)
                    case AskAlive(node, reason):
                        problem = reason if await self._is_alive(node) else None
                        kobj.asked += ("alive",)
                    case AskGone(owner):
                        problem = await self._find_kept(kobj, owner)
                        kobj.asked += ("gone",)
            if problem is not None:
                self._refuse(kobj, problem)
                return False
            verdict = self.rules.judge(kobj)
        kobj.settled = True
        return True

    async def _take_from_owner(self, kobj: KnowledgeObject, owner: str) -> str | None:
        """Replace an object by what its owner has; a text = why it is refused."""
        address = self.peers.find_address(owner)
        if address is None:
            return f"it belongs to {owner}, which cannot be asked"
        try:
            bundles = await self.peers.fetch_bundles_at(address, [kobj.rid_text])
        except PeerError as error:
            return f"it belongs to {owner}, which did not confirm it: {error}"
        for bundle in bundles:
            if bundle.rid == kobj.rid_text:
                kobj.manifest, kobj.contents = bundle.manifest, bundle.contents
                kobj.source_node, kobj.dialect = owner, address.dialect
                return None
        return f"it belongs to {owner}, which does not have it"

    async def _is_alive(self, node: str) -> bool:
        """Whether a node answers at its address as itself."""
        if self._was_seen(node):
            return True
        address = self.peers.find_address(node)
        if address is None:
            return False
        try:
            bundles = await self.peers.fetch_bundles_at(address, [node])
        except PeerError as error:
            return error.fault == "unknown_node"
        return any(bundle.rid == node for bundle in bundles)

    async def _find_kept(self, kobj: KnowledgeObject, owner: str) -> str | None:
        """Why a FORGET is refused, if the owner still has the object; None if it is gone."""
        address = self.peers.find_address(owner)
        if address is None:
            return None
        try:
            manifests = await self.peers.request(address, FetchManifests((), (kobj.rid_text,)))
        except PeerError as error:
            return f"{owner} did not say whether it still has it: {error}" if error.status else None
        listed = manifests.manifests if isinstance(manifests, ManifestsPayload) else ()
        return f"{owner} still has it" if any(m.rid == kobj.rid_text for m in listed) else None

    async def fetch(self, kobj: KnowledgeObject) -> bool:
        rid_type = kobj.rid_type
        providers = [kobj.source_node] if kobj.source_node else []
        for node in self.graph.list_nodes():
            profile = self.graph.find_node(node)
            if node not in (self.rid, kobj.source_node) and profile and rid_type in profile.state:
                providers.append(node)
        async with self._asking:
            for node in providers[:5]:
                address = self.peers.find_address(node)
                if address is None:
                    continue
                try:
                    bundles = await self.peers.fetch_bundles_at(address, [kobj.rid_text])
                except PeerError as error:
                    log.info("koi_fetch_failed", rid=kobj.rid_text, node=node, reason=str(error))
                    continue
                for bundle in bundles:
                    if bundle.rid == kobj.rid_text:
                        kobj.manifest, kobj.contents = bundle.manifest, bundle.contents
                        kobj.source_node, kobj.dialect = node, address.dialect
                        return True
        self._refuse(kobj, "no provider has its contents")
        return False

    def change_cache(self, kobj: KnowledgeObject) -> None:
        rid, rid_type = kobj.rid_text, kobj.rid_type
        if kobj.normalized_event_type is EventType.FORGET:
            self._forget(rid, rid_type)
            return
        bundle = kobj.bundle
        if bundle is None:
            raise WireError("an object without contents cannot be kept")
        owner = bundle.contents.get("node_rid") if rid_type == PERSONALITY_TYPE else None
        owner = owner if isinstance(owner, str) else None
        is_new = rid not in self.cache
        self.cache.write(bundle, owner)
        if rid_type in GRAPH_TYPES:
            self.graph.put(bundle)
            if rid_type == NODE_TYPE:
                self._recognise_contact(rid)
        elif owner is not None:
            name = name_of_personality(rid)
            self._versions[name] = self._versions.get(name, 0) + is_new
            holder = self.rules.names.get(name)
            if holder not in (None, owner):
                log.warning("koi_name_rebound", name=name, node=owner, before=holder)
            self.rules.names[name] = owner
            if kobj.source is KnowledgeSource.External and kobj.source_node in (None, owner):
                self.hear(owner)
            if f"{FORGOTTEN}{rid}" in self._forgotten:
                self.cache.note(f"{FORGOTTEN}{rid}", None)
                del self._forgotten[f"{FORGOTTEN}{rid}"]

    def _forget(self, rid: str, rid_type: str) -> None:
        entry = self.cache.find_entry(rid)
        self.cache.delete(rid)
        if rid_type in GRAPH_TYPES:
            self.graph.remove(rid)
            if rid_type == NODE_TYPE:
                self._introduced.discard(rid)
        if rid_type != PERSONALITY_TYPE or entry is None:
            return
        name = name_of_personality(rid)
        self._versions[name] = self._versions.get(name, 1) - 1
        if self._versions[name] <= 0:
            del self._versions[name]
            self.rules.names.pop(name, None)
        self._keep_note(self._forgotten, f"{FORGOTTEN}{rid}", entry.instant_us, _MAX_FORGOTTEN)

    def send(self, kobj: KnowledgeObject) -> None:
        if not kobj.network_targets or kobj.normalized_event_type is None:
            return
        owner = (kobj.contents or {}).get("node_rid")
        for target in sorted({str(target) for target in kobj.network_targets}):
            if target in (self.rid, kobj.source_node, owner):
                continue
            if self.graph.find_node(target) is None and target not in self.relays:
                log.info("koi_event_dropped", node=target, rid=kobj.rid_text, reason="the node is not known")
                continue
            self.outbox.push(target, kobj.rid_text, kobj.normalized_event_type)

    def _recognise_contact(self, rid: str) -> None:
        """Learn the RID of the first contact, if only its url was given."""
        contact, profile = self.first_contact, self.graph.find_node(rid)
        if contact is None or contact.rid is not None or profile is None or profile.base_url != contact.url:
            return
        contact.rid = rid
        self.relays.add(rid)
        self._introduced.add(rid)
