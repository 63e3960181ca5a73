"""Computes the cost of validating against a JSON Schema before the schema is used.

A validator follows every branch of ``anyOf`` and every ``$ref`` again at each place, so a kilobyte of schema
can keep a core busy for minutes (sixteen nested ``anyOf: [$ref, $ref]`` take 2.9 s to explain), and cannot be
interrupted. A count of ``$ref`` would reject the large, harmless schemas that pydantic generates. The measure
is how often one place of a value can be visited: branches at one place add up, different places do not. A
recursive union visits its places more often the deeper a value is; it is allowed for values up to a safe
depth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any
from urllib.parse import unquote

from retinue.core.errors import SchemaRefusedError

MAX_DEPTH = 64
MAX_REFS_AND_BRANCHES = 1_000
MAX_VISITS = 4_096
"""Maximum visits of one place of a value: about 0.2 s to explain."""

MAX_VALUE_DEPTH = 128
"""Endpoints reject deeper JSON, so no schema is measured further."""

MIN_VALUE_DEPTH = 4
"""A recursive schema that is unsafe for values less deep than this is rejected."""

_MAX_STEPS = 200_000

_SAME_PLACE = ("not", "if", "then", "else")
_BRANCHES = ("allOf", "anyOf", "oneOf")
_NAMED_AT_SAME_PLACE = ("dependentSchemas", "dependencies")
_REFS = ("$ref", "$dynamicRef", "$recursiveRef")


def measure_schema(document: Mapping[str, Any] | bool, where: str) -> int | None:
    """The depth up to which values are safe to validate against a decoded schema; None = any depth.

    Raises SchemaRefusedError when the schema exceeds a limit or refers outside itself.
    """
    return _measure(document, where, MAX_VALUE_DEPTH)


def check_cost(document: Mapping[str, Any] | bool, where: str) -> None:
    """Raise SchemaRefusedError exactly where `measure_schema` does, in a fraction of its time.

    A recursive schema is refused for what its first layers cost, so the others are not computed.
    """
    _measure(document, where, MIN_VALUE_DEPTH + 1)


def _measure(document: Mapping[str, Any] | bool, where: str, max_recursive_layers: int) -> int | None:
    if isinstance(document, bool):
        return None
    try:
        return _deepest_safe_value(_read_graph(document), max_recursive_layers)
    except _UnsafeSchema as problem:
        raise SchemaRefusedError(where, str(problem)) from None


class _UnsafeSchema(Exception):  # noqa: N818 - never leaves this module
    pass


@dataclass(slots=True)
class _Node:
    """One subschema. A group holds alternatives, of which the most expensive counts for a place."""

    same_place: list[int] = field(default_factory=list)
    item_groups: list[list[int]] = field(default_factory=list)
    field_groups: list[list[int]] = field(default_factory=list)

    def targets(self) -> Iterator[int]:
        yield from self.same_place
        for group in (*self.item_groups, *self.field_groups):
            yield from group


def _deepest_safe_value(graph: dict[int, _Node], max_recursive_layers: int) -> int | None:
    """The deepest value whose visits per place stay below the limit, computed layer by layer."""
    try:
        order = list(TopologicalSorter({key: node.same_place for key, node in graph.items()}).static_order())
    except CycleError:
        raise _UnsafeSchema("a $ref leads back to itself at the same place") from None
    root = next(iter(graph))
    below: dict[int, int] = dict.fromkeys(graph, 0)
    layers = min(MAX_VALUE_DEPTH, max(MIN_VALUE_DEPTH + 2, _MAX_STEPS // len(graph)))
    if max_recursive_layers < layers and _is_recursive(graph):
        layers = max_recursive_layers
    for depth in range(layers):
        as_array: dict[int, int] = {}
        as_object: dict[int, int] = {}
        for key in order:
            node = graph[key]
            as_array[key] = 1 + _sum(as_array, node.same_place) + _costliest(below, node.item_groups)
            as_object[key] = 1 + _sum(as_object, node.same_place) + _costliest(below, node.field_groups)
        visits = {key: max(as_array[key], as_object[key]) for key in graph}
        if visits[root] > MAX_VISITS:
            if depth <= MIN_VALUE_DEPTH or not _is_recursive(graph):
                raise _UnsafeSchema(f"its branches can visit one place over {MAX_VISITS:,} times")
            return depth - 1
        if visits == below:
            return None
        below = visits
    return None if depth == MAX_VALUE_DEPTH - 1 else depth


def _sum(visits: dict[int, int], keys: list[int]) -> int:
    return sum(visits[key] for key in keys)


def _costliest(visits: dict[int, int], groups: list[list[int]]) -> int:
    return sum(max(visits[key] for key in group) for group in groups if group)


def _is_recursive(graph: dict[int, _Node]) -> bool:
    try:
        TopologicalSorter({key: list(node.targets()) for key, node in graph.items()}).prepare()
    except CycleError:
        return True
    return False


def _read_graph(document: Mapping[str, Any]) -> dict[int, _Node]:
    """Every reachable subschema, by identity; the first is the whole document."""
    anchors = _read_anchors(document)
    id_keyword = "id" if "draft-04" in str(document.get("$schema")) else "$id"
    graph: dict[int, _Node] = {}
    waiting: list[Any] = [document]
    links = 0
    while waiting:
        schema = waiting.pop()
        if id(schema) in graph:
            continue
        node = graph[id(schema)] = _Node()
        if not isinstance(schema, dict):
            continue
        own_id = schema.get(id_keyword) if schema is not document else None
        if isinstance(own_id, str) and not own_id.startswith("#"):
            raise _UnsafeSchema("a part of it has an id of its own, which would move what its $refs mean")
        same = [schema[k] for k in _SAME_PLACE if k in schema]
        branches = [*_listed(schema, _BRANCHES), *_refs(schema, document, anchors)]
        links += len(branches)
        if links > MAX_REFS_AND_BRANCHES:
            raise _UnsafeSchema(f"it has over {MAX_REFS_AND_BRANCHES:,} $refs and branches")
        same += branches + _named(schema, _NAMED_AT_SAME_PLACE)
        items = [
            [*_listed(schema, ("prefixItems", "items")), *_single(schema, ("items", "additionalItems"))],
            _single(schema, ("contains",)),
            _single(schema, ("unevaluatedItems",)),
        ]
        fields = [
            [*_named(schema, ("properties",)), *_single(schema, ("additionalProperties",))],
            _named(schema, ("patternProperties",)),
            _single(schema, ("unevaluatedProperties",)),
            _single(schema, ("propertyNames",)),
        ]
        node.same_place = [id(s) for s in same]
        node.item_groups = [[id(s) for s in group] for group in items]
        node.field_groups = [[id(s) for s in group] for group in fields]
        waiting += [*same, *(s for group in (*items, *fields) for s in group)]
    return graph


def _single(schema: Mapping[str, Any], keywords: Iterable[str]) -> list[Any]:
    return [schema[k] for k in keywords if isinstance(schema.get(k), dict)]


def _listed(schema: Mapping[str, Any], keywords: Iterable[str]) -> list[Any]:
    return [s for k in keywords if isinstance(schema.get(k), list) for s in schema[k]]


def _named(schema: Mapping[str, Any], keywords: Iterable[str]) -> list[Any]:
    """Subschemas by name; a list of names (draft 7 ``dependencies``) is not a subschema."""
    return [
        s
        for k in keywords
        if isinstance(schema.get(k), dict)
        for s in schema[k].values()
        if isinstance(s, dict)
    ]


def _read_anchors(document: Mapping[str, Any]) -> dict[str, Any]:
    anchors: dict[str, Any] = {}
    layer: list[Any] = [document]
    for _ in range(MAX_DEPTH + 1):
        deeper: list[Any] = []
        for container in layer:
            if isinstance(container, dict):
                for name in _anchor_names(container):
                    if name in anchors:
                        raise _UnsafeSchema(f"it has the anchor {name!r} twice")
                    anchors[name] = container
                deeper += container.values()
            elif isinstance(container, list):
                deeper += container
        layer = [child for child in deeper if isinstance(child, dict | list)]
        if not layer:
            return anchors
    raise _UnsafeSchema(f"it is nested deeper than {MAX_DEPTH} levels")


def _anchor_names(container: Mapping[str, Any]) -> Iterator[str]:
    """The names of ``#name`` references; drafts 6 and 7 write them as an ``$id`` that begins with ``#``."""
    yield from {container[k] for k in ("$anchor", "$dynamicAnchor") if isinstance(container.get(k), str)}
    own_id = container.get("$id")
    if isinstance(own_id, str) and own_id.startswith("#"):
        yield own_id[1:]


def _refs(schema: Mapping[str, Any], document: Mapping[str, Any], anchors: Mapping[str, Any]) -> list[Any]:
    return [_resolve(schema[k], document, anchors) for k in _REFS if isinstance(schema.get(k), str)]


def _resolve(ref: str, document: Mapping[str, Any], anchors: Mapping[str, Any]) -> Any:
    pointer = unquote(ref.removeprefix("#"))
    if not ref.startswith("#"):
        raise _UnsafeSchema(f"$ref {ref[:200]!r} points outside the schema")
    if pointer in anchors:
        return anchors[pointer]
    target: Any = document
    try:
        for part in pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            target = target[int(name)] if isinstance(target, list) else target[name]
    except (LookupError, ValueError, TypeError):
        raise _UnsafeSchema(f"$ref {ref[:200]!r} leads nowhere") from None
    if pointer and not pointer.startswith("/"):
        raise _UnsafeSchema(f"$ref {ref[:200]!r} leads nowhere")
    return target
