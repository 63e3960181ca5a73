"""The known nodes and edges of a network, in memory; the cache holds them on disk."""

from __future__ import annotations

from typing import Any, Final, Literal

import structlog

from retinue_koi.codec.bundles import Bundle, WireError
from retinue_koi.codec.profiles import EdgeProfile, EdgeStatus, NodeProfile
from retinue_koi.codec.rids import EDGE_TYPE, NODE_TYPE, type_name, type_of
from retinue_koi.storage.cache import KoiCache, iterate_bundles

Direction = Literal["in", "out"]
"""``in``: edges to this node, from nodes that it has subscribed to; ``out``: to its subscribers."""

GRAPH_TYPES: Final = (NODE_TYPE, EDGE_TYPE)

log = structlog.get_logger("retinue.koi")


class NetworkGraph:
    """This node's view of its network."""

    def __init__(self, own_rid: str) -> None:
        self._own_rid = own_rid
        self._nodes: dict[str, NodeProfile] = {}
        self._edges: dict[str, EdgeProfile] = {}

    def load(self, cache: KoiCache) -> None:
        """Read the nodes and edges of the cache."""
        for bundle in list(iterate_bundles(cache, GRAPH_TYPES)):
            self.put(bundle)

    def put(self, bundle: Bundle) -> None:
        """Take over the bundle of a node or an edge; a malformed one is left out with a log line."""
        try:
            if type_of(bundle.rid) == NODE_TYPE:
                self._nodes[bundle.rid] = NodeProfile.parse(bundle.contents)
            else:
                self._edges[bundle.rid] = EdgeProfile.parse(bundle.contents)
        except WireError as error:
            log.warning("koi_graph_entry_left_out", rid=bundle.rid, reason=str(error))

    def remove(self, rid: str) -> None:
        self._nodes.pop(rid, None)
        self._edges.pop(rid, None)

    def find_node(self, rid: object) -> NodeProfile | None:
        return self._nodes.get(str(rid))

    def list_nodes(self) -> list[str]:
        return list(self._nodes)

    def find_edge(self, rid: str) -> EdgeProfile | None:
        return self._edges.get(rid)

    def get_edge(self, source: object, target: object) -> str | None:
        """The RID of the edge from one node to another, or None."""
        ends = str(source), str(target)
        return next((rid for rid, edge in self._edges.items() if (edge.source, edge.target) == ends), None)

    def list_edges_of(self, node: str) -> list[str]:
        """The edges that begin or end at a node."""
        return [rid for rid, edge in self._edges.items() if node in (edge.source, edge.target)]

    def get_neighbors(
        self,
        direction: Direction | None = None,
        status: EdgeStatus | None = None,
        allowed_type: Any = None,
    ) -> list[str]:
        """The nodes that share an edge with this one.

        ``allowed_type`` is a RID type, as text or class, that the edge names.
        """
        wanted = None if allowed_type is None else type_name(allowed_type)
        rids: dict[str, None] = {}
        for edge in self._edges.values():
            if status is not None and edge.status is not status:
                continue
            if wanted is not None and wanted not in edge.rid_types:
                continue
            if direction != "in" and edge.source == self._own_rid:
                rids[edge.target] = None
            elif direction != "out" and edge.target == self._own_rid:
                rids[edge.source] = None
        return list(rids)
