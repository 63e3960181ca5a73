"""The contents of node bundles and edge bundles (specification 4.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from retinue_koi.codec.bundles import WireError, parse_node_rid

NODE_CONTEXT: Final = "orn:koi-net.context:koi-net.node"
EDGE_CONTEXT: Final = "orn:koi-net.context:koi-net.edge"
MAX_RID_TYPES: Final = 100


class NodeType(StrEnum):
    """A FULL node has a base_url on which it answers; a PARTIAL node polls."""

    FULL = "FULL"
    PARTIAL = "PARTIAL"


class EdgeType(StrEnum):
    """How events reach the target of an edge."""

    WEBHOOK = "WEBHOOK"
    POLL = "POLL"


class EdgeStatus(StrEnum):
    """The target proposes an edge, the source approves it."""

    PROPOSED = "PROPOSED"
    APPROVED = "APPROVED"


@dataclass(frozen=True, slots=True)
class NodeProfile:
    """Where a node it answers, the types that it provides as events and as state, its key."""

    node_type: NodeType
    base_url: str | None = None
    event: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    public_key: str | None = None

    @classmethod
    def parse(cls, contents: dict[str, Any]) -> NodeProfile:
        """Parse the contents of a node's bundle. Raises WireError, which names the field."""
        try:
            node_type = NodeType(contents.get("node_type") or "")
        except ValueError as error:
            raise WireError("node_type: it is neither FULL nor PARTIAL") from error
        provides = contents.get("provides")
        if provides is None:
            provides = {}
        if not isinstance(provides, dict):
            raise WireError("provides: it is not an object")
        base_url, public_key = contents.get("base_url"), contents.get("public_key")
        if not isinstance(base_url, str | None) or not isinstance(public_key, str | None):
            raise WireError("base_url, public_key: they are not strings")
        return cls(
            node_type,
            base_url.rstrip("/") if base_url else None,
            _parse_types(provides.get("event"), "provides.event"),
            _parse_types(provides.get("state"), "provides.state"),
            public_key,
        )

    def render(self) -> dict[str, Any]:
        data: dict[str, Any] = {"@context": NODE_CONTEXT}
        if self.base_url is not None:
            data["base_url"] = self.base_url
        data["node_type"] = self.node_type.value
        data["provides"] = {"event": list(self.event), "state": list(self.state)}
        if self.public_key is not None:
            data["public_key"] = self.public_key
        return data


@dataclass(frozen=True, slots=True)
class EdgeProfile:
    """An edge: ``target`` has subscribed to events of these types at ``source``, which provides them."""

    source: str
    target: str
    edge_type: EdgeType
    status: EdgeStatus
    rid_types: tuple[str, ...]

    @classmethod
    def parse(cls, contents: dict[str, Any]) -> EdgeProfile:
        """Parse the contents of an edge's bundle. Raises WireError, which names the field."""
        source, target = (parse_node_rid(contents.get(field), field) for field in ("source", "target"))
        try:
            edge_type = EdgeType(contents.get("edge_type") or "")
            status = EdgeStatus(contents.get("status") or "")
        except ValueError as error:
            raise WireError(
                "edge_type, status: they are not WEBHOOK or POLL, PROPOSED or APPROVED"
            ) from error
        rid_types = _parse_types(contents.get("rid_types"), "rid_types")
        return cls(source, target, edge_type, status, rid_types)

    def render(self) -> dict[str, Any]:
        return {
            "@context": EDGE_CONTEXT,
            "source": self.source,
            "target": self.target,
            "edge_type": self.edge_type.value,
            "status": self.status.value,
            "rid_types": list(self.rid_types),
        }

    def approved(self) -> EdgeProfile:
        return replace(self, status=EdgeStatus.APPROVED)


def _parse_types(value: object, field: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise WireError(f"{field}: it is not a list of RID types")
    if len(value) > MAX_RID_TYPES:
        raise WireError(f"{field}: it holds more than {MAX_RID_TYPES} types")
    return tuple(value)
