"""The handlers of every node: negotiate edges, contact nodes, send events to subscribers."""

from __future__ import annotations

import structlog

from retinue_koi.codec.bundles import Bundle, EventType
from retinue_koi.codec.profiles import EdgeProfile, EdgeStatus, EdgeType, NodeProfile, NodeType
from retinue_koi.codec.rids import EDGE_TYPE, NODE_TYPE
from retinue_koi.joining import Joining, lost_edge
from retinue_koi.knowledge import STOP_CHAIN, HandlerResult, HandlerType, KnowledgeObject, KnowledgeSource
from retinue_koi.node_state import NodeState
from retinue_koi.pipeline import Processor
from retinue_koi.wire import Messenger

log = structlog.get_logger("retinue.koi")


def register_node_handlers(processor: Processor, state: NodeState, wire: Messenger, joining: Joining) -> None:
    """Register them, in the order of a stock node."""

    @processor.register_handler(
        HandlerType.Bundle, [EDGE_TYPE], [EventType.NEW, EventType.UPDATE], KnowledgeSource.External
    )
    def negotiate_edge(_: Processor, kobj: KnowledgeObject) -> HandlerResult:
        """Approve a subscription that asks for types that this node provides, else have it forgotten."""
        edge = EdgeProfile.parse(kobj.contents or {})
        if edge.source != state.rid or edge.status is not EdgeStatus.PROPOSED:
            return None
        peer = state.graph.find_node(edge.target)
        provided = {*state.identity.profile.event, NODE_TYPE, EDGE_TYPE}
        reason = ""
        if peer is not None and peer.node_type is NodeType.PARTIAL and edge.edge_type is EdgeType.WEBHOOK:
            reason = "a PARTIAL node has no webhook; it polls"
        elif missing := set(edge.rid_types) - provided:
            reason = f"this node does not provide {', '.join(sorted(missing))}"
        if reason:
            log.warning("koi_edge_refused", edge=kobj.rid_text, node=edge.target, reason=reason)
            wire.outbox.push(edge.target, kobj.rid_text, EventType.FORGET)
            return STOP_CHAIN
        held = kobj.manifest.instant_us if kobj.manifest is not None else 0
        approved = Bundle.generate(kobj.rid_text, edge.approved().render(), after_us=held)
        processor.handle(bundle=approved, event_type=EventType.UPDATE)
        joining.make_up(edge.target, edge.rid_types)
        return None

    @processor.register_handler(HandlerType.Network)
    def choose_targets(_: Processor, kobj: KnowledgeObject) -> HandlerResult:
        """Choose the receivers: for own edges their nodes, for the own profile all neighbors, otherwise the
        type's subscribers."""
        rid_type = kobj.rid_type
        if kobj.source is KnowledgeSource.Internal:
            if rid_type == EDGE_TYPE:
                edge = EdgeProfile.parse(kobj.contents or {})
                kobj.network_targets |= {edge.source, edge.target}
                return None
            if kobj.rid_text == state.rid:
                kobj.network_targets |= set(state.graph.get_neighbors())
                return None
        if rid_type in state.identity.profile.event:
            kobj.network_targets |= set(
                state.graph.get_neighbors(direction="out", status=EdgeStatus.APPROVED, allowed_type=rid_type)
            )
        return None

    @processor.register_handler(HandlerType.Final, [NODE_TYPE], None, KnowledgeSource.External)
    def meet_node(_: Processor, kobj: KnowledgeObject) -> HandlerResult:
        """Answer a node that introduces itself, and subscribe to its types of interest."""
        if kobj.normalized_event_type is EventType.FORGET:
            # before its next introduction, which may wait in the same message
            edges = state.graph.list_edges_of(kobj.rid_text)
            processor.handle_next([lost_edge(edge, kobj.rid_text) for edge in edges])
            wire.outbox.drop(kobj.rid_text)
            return None
        introduced = kobj.source_node in (None, kobj.rid_text)
        if introduced and not wire.introductions.has_introduced_itself_to(kobj.rid_text):
            wire.outbox.push(kobj.rid_text, state.rid, EventType.NEW)
        joining.subscribe(kobj.rid_text, NodeProfile.parse(kobj.contents or {}))
        return None

    @processor.register_handler(
        HandlerType.Final, [EDGE_TYPE], [EventType.NEW, EventType.UPDATE], KnowledgeSource.External
    )
    def catch_up_when_approved(_: Processor, kobj: KnowledgeObject) -> HandlerResult:
        """Fetch again from a provider that approves: it sends no event of what changed before."""
        edge = EdgeProfile.parse(kobj.contents or {})
        if edge.target == state.rid and edge.status is EdgeStatus.APPROVED:
            joining.follow_up(edge.source, edge.rid_types)
        return None
