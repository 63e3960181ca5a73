"""Asks other nodes about an object, and answers their questions from cache and graph."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

import structlog

from retinue_koi.codec.bundles import Bundle, Dialect, Event, EventType, WireError, encode_bundle, in_dialect
from retinue_koi.codec.payloads import BundlesPayload, FetchManifests, FetchRids, ManifestsPayload
from retinue_koi.codec.profiles import NodeProfile
from retinue_koi.codec.rids import NODE_TYPE
from retinue_koi.graph import NetworkGraph
from retinue_koi.knowledge import KnowledgeObject
from retinue_koi.memory import NodeMemory
from retinue_koi.peers import NodeAddress, NodeClient, PeerError
from retinue_koi.rules import AskAlive, AskContact, AskGone, AskOwner, Refuse, Verdict
from retinue_koi.storage.cache import KoiCache

_ASKED_AT_ONCE: Final = 16
_PROVIDERS: Final = 5

REPLY_BUNDLES: Final = 1000
REPLY_BYTES: Final = 3 * 1024 * 1024

log = structlog.get_logger("retinue.koi")


class Questions:
    """Asks other nodes, at most 16 at once; each question ends with the time limit of a request."""

    def __init__(self, own_rid: str, peers: NodeClient, graph: NetworkGraph, memory: NodeMemory) -> None:
        self._own_rid = own_rid
        self._peers = peers
        self._graph = graph
        self._memory = memory
        self._asking = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def settle(
        self, kobj: KnowledgeObject, verdict: Verdict, judge: Callable[[KnowledgeObject], Verdict]
    ) -> str | None:
        """Ask the nodes that a verdict names, until the object is accepted; a text = why it is refused."""
        while verdict is not None:
            async with self._asking:
                match verdict:
                    case Refuse(reason):
                        problem: str | None = reason
                    case AskOwner(owner):
                        problem = await self._take_from_owner(kobj, owner)
                        kobj.asked += ("owner",)
                    case AskAlive(node, reason):
                        problem = reason if await self.is_alive(node) else None
                        kobj.asked += ("alive",)
                    case AskContact(node, url, key):
                        signs = await self._signs_as(url, node, key)
                        problem = None if signs else f"{url} does not answer as {node}"
                        kobj.asked += ("contact",)
                    case AskGone(owner, must_answer):
                        problem = await self._find_kept(kobj, owner, must_answer=must_answer)
                        kobj.asked += ("gone",)
            if problem is not None:
                return problem
            verdict = judge(kobj)
        return None

    async def is_alive(self, node: str) -> bool:
        """Whether a node answers at its address as itself."""
        if self._memory.was_seen(node):
            return True
        address = self._peers.find_address(node)
        if address is None:
            return False
        try:
            bundles = await self._peers.fetch_bundles_at(address, [node])
        except PeerError as error:
            return error.fault == "unknown_node"
        return any(bundle.rid == node for bundle in bundles)

    async def signs_as(self, url: str, node: str, public_key: str) -> bool:
        """Whether what answers at a url signs its reply as this node."""
        async with self._asking:
            return await self._signs_as(url, node, public_key)

    async def _signs_as(self, url: str, node: str, public_key: str) -> bool:
        try:
            await self._peers.request(NodeAddress(url, node, "signed", public_key), FetchRids((NODE_TYPE,)))
        except PeerError as error:
            log.info("koi_contact_not_confirmed", node=node, url=url, reason=str(error))
            return False
        return True

    async def fetch(self, kobj: KnowledgeObject) -> bool:
        """Add manifest and contents from the source or another provider; False if no node has them."""
        rid_type = kobj.rid_type
        providers = [kobj.source_node] if kobj.source_node else []
        for node in self._graph.list_nodes():
            profile = self._graph.find_node(node)
            if node not in (self._own_rid, kobj.source_node) and profile and rid_type in profile.state:
                providers.append(node)
        async with self._asking:
            for node in providers[:_PROVIDERS]:
                address = self._peers.find_address(node)
                if address is None:
                    continue
                try:
                    bundles = await self._peers.fetch_bundles_at(address, [kobj.rid_text])
                except PeerError as error:
                    log.info("koi_fetch_failed", rid=kobj.rid_text, node=node, reason=str(error))
                    continue
                for bundle in bundles:
                    if bundle.rid == kobj.rid_text:
                        kobj.manifest, kobj.contents = bundle.manifest, bundle.contents
                        kobj.source_node, kobj.dialect = node, address.dialect
                        return True
        return False

    async def _take_from_owner(self, kobj: KnowledgeObject, owner: str) -> str | None:
        """Replace an object by what its owner has; a text = why it is refused."""
        address = self._peers.find_address(owner)
        belongs = (kobj.contents or {}).get("node_rid", owner) == owner
        what = f"it belongs to {owner}" if belongs else f"it was forgotten and comes from {owner}"
        if address is None:
            return f"{what}, which cannot be asked"
        try:
            bundles = await self._peers.fetch_bundles_at(address, [kobj.rid_text])
        except PeerError as error:
            return f"{what}, which did not confirm it: {error}"
        for bundle in bundles:
            if bundle.rid == kobj.rid_text:
                kobj.manifest, kobj.contents = bundle.manifest, bundle.contents
                kobj.source_node, kobj.dialect = owner, address.dialect
                return None
        return f"{what}, which does not have it"

    async def find_kept(self, node: str, rids: Sequence[str], within_s: float) -> set[str] | None:
        """Which of these RIDs a node has; none if it does not know this node, None without an answer."""
        address = self._peers.find_address(node)
        if address is None:
            return None
        try:
            async with asyncio.timeout(within_s), self._asking:
                reply = await self._peers.request(address, FetchManifests((), tuple(rids)))
        except TimeoutError:
            return None
        except PeerError as error:
            log.info("koi_node_not_asked", node=node, reason=str(error))
            return set() if error.fault == "unknown_node" else None
        return {manifest.rid for manifest in reply.manifests} if isinstance(reply, ManifestsPayload) else None

    async def _find_kept(self, kobj: KnowledgeObject, owner: str, *, must_answer: bool) -> str | None:
        """The reason to refuse a FORGET when the owner still has the object; None when the owner has not."""
        address = self._peers.find_address(owner)
        if address is None:
            return None
        try:
            manifests = await self._peers.request(address, FetchManifests((), (kobj.rid_text,)))
        except PeerError as error:
            silent = not error.status and not must_answer
            return None if silent else f"{owner} did not say whether it still has it: {error}"
        listed = manifests.manifests if isinstance(manifests, ManifestsPayload) else ()
        return f"{owner} still has it" if any(m.rid == kobj.rid_text for m in listed) else None


def list_manifests(cache: KoiCache, rids: Iterable[str], dialect: Dialect) -> ManifestsPayload:
    """The manifests of these RIDs, with the hash of the dialect."""
    manifests, not_found = [], []
    for rid in rids:
        entry = cache.find_entry(rid)
        if entry is None:
            not_found.append(rid)
        elif entry.same_in_both:
            manifests.append(entry.manifest)
        elif (bundle := cache.read(rid)) is not None:
            manifests.append(in_dialect(bundle, dialect).manifest)
    return ManifestsPayload(tuple(manifests), tuple(not_found))


def list_bundles(cache: KoiCache, rids: Sequence[str], dialect: Dialect) -> BundlesPayload:
    """The bundles of these RIDs, up to the limits of a reply; the rest is deferred."""
    bundles: list[Bundle] = []
    not_found: list[str] = []
    size = 0
    for position, rid in enumerate(rids):
        bundle = cache.read(rid)
        if bundle is None:
            not_found.append(rid)
            continue
        size += len(encode_bundle(bundle))
        if bundles and (size > REPLY_BYTES or len(bundles) >= REPLY_BUNDLES):
            return BundlesPayload(tuple(bundles), tuple(not_found), tuple(rids[position:]))
        bundles.append(in_dialect(bundle, dialect))
    return BundlesPayload(tuple(bundles), tuple(not_found))


def find_met_again(graph: NetworkGraph, events: Sequence[Event]) -> set[str]:
    """Nodes that introduce themselves again as they are known, by FORGET and NEW."""
    nodes = set()
    forgotten = {event.rid for event in events if event.event_type is EventType.FORGET}
    for event in events:
        if event.rid not in forgotten:
            continue
        held = graph.find_node(event.rid)
        if held is not None and event.event_type is EventType.NEW and event.contents is not None:
            with suppress(WireError):
                if NodeProfile.parse(event.contents) == held:
                    nodes.add(event.rid)
    return nodes
