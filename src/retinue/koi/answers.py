"""The answers of a node to questions of others, read from its cache and graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from retinue.koi.cache import KoiCache
from retinue.koi.codec.bundles import Bundle, Dialect, Event, EventType, WireError, encode_bundle, in_dialect
from retinue.koi.codec.payloads import BundlesPayload, ManifestsPayload
from retinue.koi.codec.profiles import NodeProfile
from retinue.koi.graph import NetworkGraph

REPLY_BUNDLES: Final = 1000
REPLY_BYTES: Final = 3 * 1024 * 1024


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
    """Nodes that introduce themselves again as they are known: their FORGET only resets their edges."""
    found = set()
    for event in events:
        held = graph.find_node(event.rid)
        if held is not None and event.event_type is EventType.NEW and event.contents is not None:
            with suppress(WireError):
                if NodeProfile.parse(event.contents) == held:
                    found.add(event.rid)
    return found
