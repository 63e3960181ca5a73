"""The handlers of personalities in a node's pipeline (seed 003, K-16 … K-19).

A personality is listed after the cache has it, so that what a later handler or a full disk stops is never
listed (K-14, specification 7.4).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from pydantic import ValidationError

from retinue_koi.adapter import MCPAdapter
from retinue_koi.codec.bundles import Bundle, EventType
from retinue_koi.codec.personality import AgentPersonality, PersonalityProfile
from retinue_koi.codec.rids import PERSONALITY_TYPE
from retinue_koi.knowledge import (
    STOP_CHAIN,
    HandlerResult,
    HandlerType,
    KnowledgeObject,
    KnowledgeSource,
    handler,
)
from retinue_koi.pipeline import Processor
from retinue_koi.storage.cache import KoiCache, iterate_bundles

_log = structlog.get_logger("retinue.koi")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CHANGES = (EventType.NEW, EventType.UPDATE)
IsOwn = Callable[[str], bool]
"""Whether a RID is of this node's own making."""


def register_personality_handlers(
    processor: Processor,
    mcp_adapter: MCPAdapter | None = None,
    *,
    is_own: IsOwn | None = None,
) -> None:
    """Add the handlers of all three stages; with an adapter, personalities are listed in it.

    An own personality is ``processor.personality_rid``, or what ``is_own`` says.
    """

    def owns(proc: Any, rid: str) -> bool:
        own = getattr(proc, "personality_rid", None)
        return (own is not None and str(own) == rid) or (is_own is not None and is_own(rid))

    @handler(HandlerType.RID, rid_types=[AgentPersonality])
    def personality_rid_handler(proc: Any, kobj: KnowledgeObject) -> HandlerResult:
        if kobj.source is not KnowledgeSource.External:
            return kobj
        if owns(proc, kobj.rid_text):
            _log.warning("change of the own personality refused", rid=kobj.rid_text, node=kobj.source_node)
            return STOP_CHAIN
        if kobj.event_type in _CHANGES:
            known = proc.cache.exists(kobj.rid_text)
            kobj.normalized_event_type = EventType.UPDATE if known else EventType.NEW
        return kobj

    @handler(HandlerType.Bundle, rid_types=[AgentPersonality])
    def personality_bundle_handler(proc: Any, kobj: KnowledgeObject) -> HandlerResult:
        if kobj.normalized_event_type is EventType.FORGET:
            return kobj
        try:
            read_personality(kobj.rid_text, kobj.contents)
        except ValueError as error:
            _log.error("personality refused", rid=kobj.rid_text, node=kobj.source_node, reason=str(error))
            return STOP_CHAIN
        if kobj.normalized_event_type is None:
            known = proc.cache.exists(kobj.rid_text)
            kobj.normalized_event_type = EventType.UPDATE if known else EventType.NEW
        return kobj

    @handler(HandlerType.Network, rid_types=[AgentPersonality])
    def personality_network_handler(proc: Any, kobj: KnowledgeObject) -> HandlerResult:
        if mcp_adapter is not None:
            _list(mcp_adapter, kobj)
        graph = proc.network.graph
        kobj.network_targets.update(graph.get_neighbors(direction="out", allowed_type=AgentPersonality))
        if owns(proc, kobj.rid_text):
            kobj.network_targets.update(graph.get_neighbors())
        # never back to where it came from (specification 4, doubt 20)
        kobj.network_targets.discard(kobj.source_node)
        return kobj

    processor.add_handler(personality_rid_handler)
    processor.add_handler(personality_bundle_handler)
    processor.add_handler(personality_network_handler)


def read_personality(rid: str, contents: Any) -> PersonalityProfile:
    """The profile in the contents of a bundle; raises ValueError with the reason in one line."""
    try:
        profile = PersonalityProfile.model_validate(contents)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "contents"
        raise ValueError(f"{place}: {first['msg'].lower()}") from error
    if str(profile.rid) != rid:
        raise ValueError(f"rid: the contents are of {profile.rid}")
    return profile


def fill_adapter(adapter: MCPAdapter, cache: KoiCache) -> int:
    """List every personality of the cache; returns how many. One that cannot be read is logged."""
    count = 0
    for bundle in list(iterate_bundles(cache, (PERSONALITY_TYPE,))):
        try:
            profile = read_personality(bundle.rid, bundle.contents)
        except ValueError as error:
            _log.warning("cached personality left out", rid=bundle.rid, reason=str(error))
            continue
        adapter.register_agent(profile, timestamp=time_of(bundle), sha256_hash=bundle.manifest.sha256_hash)
        count += 1
    return count


def time_of(bundle: Bundle) -> datetime:
    """The time of a bundle's manifest."""
    return _EPOCH + timedelta(microseconds=bundle.manifest.instant_us)


def _list(adapter: MCPAdapter, kobj: KnowledgeObject) -> None:
    if kobj.normalized_event_type is EventType.FORGET:
        adapter.forget_agent(AgentPersonality.from_string(kobj.rid_text))
        return
    bundle = kobj.bundle
    if bundle is not None:
        adapter.register_agent(
            PersonalityProfile.model_validate(bundle.contents),
            timestamp=time_of(bundle),
            sha256_hash=bundle.manifest.sha256_hash,
        )
