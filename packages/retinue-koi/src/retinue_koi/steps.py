"""The steps of a node between the stages of the pipeline: judge, fetch, keep and send an object."""

from __future__ import annotations

from collections.abc import Awaitable

import structlog

from retinue_koi.codec.bundles import EventType, WireError
from retinue_koi.codec.rids import NODE_TYPE, PERSONALITY_TYPE, name_of_personality
from retinue_koi.graph import GRAPH_TYPES
from retinue_koi.joining import Joining
from retinue_koi.knowledge import KnowledgeObject, KnowledgeSource
from retinue_koi.node_state import NodeState
from retinue_koi.pipeline import PipelineSteps
from retinue_koi.policy import Policy
from retinue_koi.rules import FUTURE_US, Refuse, Verdict
from retinue_koi.wire import Messenger

log = structlog.get_logger("retinue.koi")


class NodeSteps(PipelineSteps):
    """The steps of one node, between its pipeline and its state, policy and wire."""

    def __init__(self, state: NodeState, wire: Messenger, policy: Policy, joining: Joining) -> None:
        self._state = state
        self._wire = wire
        self._policy = policy
        self._joining = joining
        self._cache = state.cache
        self._graph = state.graph
        self._rules = policy.rules
        self._memory = state.memory
        self._owners: dict[str, dict[str, str]] = {}
        """Name → RIDs of the personalities of that name, the one accepted last at the end → their nodes."""

    def load(self) -> None:
        """Bind the names of the cache's personalities to their nodes; the latest state decides."""
        entries = [(rid, self._cache.find_entry(rid)) for rid in self._cache.list_rids([PERSONALITY_TYPE])]
        owned = [(entry.instant_us, rid, entry.owner) for rid, entry in entries if entry and entry.owner]
        for _, rid, owner in sorted(owned):
            self._bind(rid, owner)

    def _bind(self, rid: str, owner: str) -> None:
        name = name_of_personality(rid)
        owners = self._owners.setdefault(name, {})
        owners.pop(rid, None)
        owners[rid] = owner
        self._rules.names[name] = owner

    def _unbind(self, rid: str) -> None:
        """A name stays with the node of the version that was accepted last, unless it was released."""
        name = name_of_personality(rid)
        owners = self._owners.get(name, {})
        owners.pop(rid, None)
        if not owners:
            self._owners.pop(name, None)
            self._rules.names.pop(name, None)
        elif self._rules.names.get(name) not in (None, *owners.values()):
            self._rules.names[name] = next(reversed(owners.values()))

    def is_stale(self, kobj: KnowledgeObject) -> bool:
        held = self._cache.find_entry(kobj.rid_text)
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
        dated_ahead = held.instant_us > self._state.now_us() + FUTURE_US
        if dated_ahead and kobj.rid_type == PERSONALITY_TYPE and not kobj.settled:
            return False
        if instant == held.instant_us and not held.same_in_both and kobj.contents is not None:
            bundle = self._cache.read(kobj.rid_text)
            if bundle is not None and bundle.contents == kobj.contents:
                return True  # the same, with the hash of the other dialect
        self._refuse(kobj, f"it is of {manifest.timestamp}; this node has {held.manifest.timestamp}")
        return True

    def settle(self, kobj: KnowledgeObject) -> Awaitable[bool] | bool:
        if kobj.source is KnowledgeSource.Internal:
            kobj.settled = True
            return True
        verdict = self._policy.judge(kobj)
        if verdict is None:
            kobj.settled = True
            return True
        if isinstance(verdict, Refuse):
            self._refuse(kobj, verdict.reason)
            return False
        return self._ask(kobj, verdict)

    async def _ask(self, kobj: KnowledgeObject, verdict: Verdict) -> bool:
        problem = await self._policy.settle(kobj, verdict)
        if problem is not None:
            self._refuse(kobj, problem)
            return False
        kobj.settled = True
        return True

    async def fetch(self, kobj: KnowledgeObject) -> bool:
        if await self._policy.questions.fetch(kobj):
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
        self._cache.write(bundle, owner)
        if rid_type not in GRAPH_TYPES:
            self._joining.note_change()
        if rid_type in GRAPH_TYPES:
            self._graph.put(bundle)
            if rid_type == NODE_TYPE:
                self._wire.introductions.recognise_contact(rid)
        elif owner is not None:
            name = name_of_personality(rid)
            holder = self._rules.names.get(name)
            if holder not in (None, owner):
                log.warning("koi_name_rebound", name=name, node=owner, before=holder)
            self._bind(rid, owner)
            if kobj.source is KnowledgeSource.External and kobj.source_node in (None, owner):
                self._memory.hear(owner)
            self._memory.drop_forgotten(rid)

    def send(self, kobj: KnowledgeObject) -> None:
        if not kobj.network_targets or kobj.normalized_event_type is None:
            return
        owner = (kobj.contents or {}).get("node_rid")
        for target in sorted({str(target) for target in kobj.network_targets}):
            if target in (self._state.rid, kobj.source_node, owner):
                continue
            if self._graph.find_node(target) is None and target not in self._rules.relays:
                log.info("koi_event_dropped", node=target, rid=kobj.rid_text, reason="the node is not known")
                continue
            self._wire.outbox.push(target, kobj.rid_text, kobj.normalized_event_type)

    def _forget(self, rid: str, rid_type: str) -> None:
        entry = self._cache.find_entry(rid)
        self._cache.delete(rid)
        if rid_type in GRAPH_TYPES:
            self._graph.remove(rid)
            if rid_type == NODE_TYPE:
                self._joining.forget_introduction(rid)
        if rid_type != PERSONALITY_TYPE or entry is None:
            return
        self._unbind(rid)
        self._memory.note_forgotten(rid, entry.instant_us)

    def _refuse(self, kobj: KnowledgeObject, reason: str) -> None:
        log.warning(
            "koi_event_refused",
            rid=kobj.rid_text,
            event_type=kobj.event_type and kobj.event_type.value,
            node=kobj.source_node,
            reason=reason,
        )
