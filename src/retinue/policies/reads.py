"""Finds what a policy reads of a call: paths of arguments with the types that it expects, and entity ids.

A policy in its JSON form names each argument as ``context.args.NAME``. Only these arguments are passed to the
engine, because mapping all arguments of a large call takes longer than everything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

ValueType = Literal["present", "integer", "decimal", "text", "boolean", "integers", "texts"]
"""What a policy expects of an argument; ``present`` = only whether there is a value.

``decimal`` is a number with four places; ``integers`` and ``texts`` are lists, which a policy reads as sets.
"""

Path = tuple[str, ...]

_RESERVED = frozenset({"__entity", "__extn", "__expr"})
"""Keys that the engine does not take as names of attributes."""

_SCOPES = "scopes"

_COMPARED = frozenset({"lessThan", "lessThanOrEqual", "greaterThan", "greaterThanOrEqual"})
_ARITHMETIC = frozenset({"<", "<=", ">", ">=", "+", "-", "*"})
_OPERANDS: Mapping[str, ValueType] = {"!": "boolean", "neg": "integer", "isEmpty": "texts"}
_LOGIC = frozenset({"&&", "||"})
_SETS = frozenset({"contains", "containsAll", "containsAny"})


class EntityId(NamedTuple):
    """An entity that a policy names."""

    type: str
    id: str


class ReadError(ValueError):
    """A policy reads something in a way that cannot be checked; the text says what."""


@dataclass(slots=True)
class Reads:
    """The facts that one policy reads.

    ``arguments`` are the paths below ``context.args`` that have no longer one.
    """

    arguments: dict[Path, ValueType] = field(default_factory=dict)
    entities: set[EntityId] = field(default_factory=set)
    facts: set[str] = field(default_factory=set)
    """Attributes of ``context`` other than ``args``."""


def find_reads(policy: Mapping[str, Any]) -> Reads:
    """What a policy in its JSON form reads.

    Raises ReadError for a policy that reads ``context`` or ``context.args`` as a whole, for one that reads an
    argument as two types, and for one that reads the scopes of anybody but the caller.
    """
    reads = Reads()
    uses: dict[Path, set[ValueType]] = {}
    for scope in ("principal", "action", "resource"):
        reads.entities.update(_find_entities(policy[scope]))
    for condition in policy["conditions"]:
        _walk(condition["body"], "boolean", reads, uses)
    for path, types in uses.items():
        if any(len(other) > len(path) and other[: len(path)] == path for other in uses):
            if types != {"present"}:
                name = ".".join(path)
                raise ReadError(f"context.args.{name} is read as a value and as a record with attributes")
            continue
        known = types - {"present"}
        if len(known) > 1:
            listed = " and ".join(sorted(known))
            raise ReadError(f"context.args.{'.'.join(path)} is read as {listed}")
        reads.arguments[path] = known.pop() if known else "present"
    return reads


def _find_entities(node: Any) -> Iterator[EntityId]:
    """The entities of a scope, which may be one or several."""
    if isinstance(node, Mapping):
        if node.keys() == {"type", "id"}:
            yield EntityId(node["type"], node["id"])
            return
        for inner in node.values():
            yield from _find_entities(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from _find_entities(inner)


def _walk(node: Any, expected: ValueType, reads: Reads, uses: dict[Path, set[ValueType]]) -> None:
    """Note what an expression reads; ``expected`` is the type that its place asks for."""
    _check_scopes(node)
    chain = _read_chain(node)
    if chain is not None:
        _note(chain, expected, reads, uses)
        return
    ((operator, operands),) = node.items()
    if operator == "Value":
        if isinstance(operands, Mapping) and (entity := operands.get("__entity")) is not None:
            reads.entities.add(EntityId(entity["type"], entity["id"]))
    elif operator in ("Var", "Slot", "Unknown"):
        return
    elif operator == "has":
        _note_has(operands, reads, uses)
    elif operator == "Set":
        inner: ValueType = "integer" if expected == "integers" else "text"
        for element in operands:
            _walk(element, inner, reads, uses)
    elif operator == "Record":
        for element in operands.values():
            _walk(element, "text", reads, uses)
    elif operator == "if-then-else":
        _walk(operands["if"], "boolean", reads, uses)
        _walk(operands["then"], expected, reads, uses)
        _walk(operands["else"], expected, reads, uses)
    elif isinstance(operands, list):
        inner = "decimal" if operator in _COMPARED else "text"
        for element in operands:
            _walk(element, inner, reads, uses)
    elif "left" in operands and "right" in operands:
        left, right = _expect(operator, operands["left"], operands["right"])
        _walk(operands["left"], left, reads, uses)
        _walk(operands["right"], right, reads, uses)
    else:
        for key in ("arg", "left"):
            if key in operands:
                _walk(operands[key], _OPERANDS.get(operator, "text"), reads, uses)
        if operator == "is" and "in" in operands:
            _walk(operands["in"], "text", reads, uses)


def _expect(operator: str, left: Any, right: Any) -> tuple[ValueType, ValueType]:
    """The types that a binary operator asks of both sides."""
    if operator in _LOGIC:
        return "boolean", "boolean"
    if operator in _ARITHMETIC:
        return "integer", "integer"
    if operator in ("==", "!="):
        known = _type_of(right) or _type_of(left) or "text"
        return known, known
    if operator in _SETS:
        elements: ValueType = (
            "integers" if "integer" in (_elements_of(left), _elements_of(right)) else "texts"
        )
        if operator == "contains":
            element: ValueType = (
                "integer" if elements == "integers" or _type_of(right) == "integer" else "text"
            )
            return ("integers" if element == "integer" else "texts"), element
        return elements, elements
    return "text", "text"


def _type_of(node: Any) -> ValueType | None:
    """The type of a literal; None for any other expression."""
    ((operator, operands),) = node.items()
    if operator == "decimal":
        return "decimal"
    if operator in _ARITHMETIC - {"<", "<=", ">", ">="} or operator == "neg":
        return "integer"
    if operator == "Set":
        return "integers" if _elements_of(node) == "integer" else "texts"
    if operator == "Value":
        if isinstance(operands, bool):
            return "boolean"
        return "integer" if isinstance(operands, int) else "text" if isinstance(operands, str) else None
    return None


def _elements_of(node: Any) -> ValueType | None:
    """The type of the first element of a set literal."""
    elements = node.get("Set")
    return _type_of(elements[0]) if elements else None


def _read_chain(node: Any) -> Path | None:
    """The attributes of a chain such as ``context.args.a.b``: ("args", "a", "b"); None for anything else."""
    attributes: list[str] = []
    while "." in node:
        attributes.append(node["."]["attr"])
        node = node["."]["left"]
    return tuple(reversed(attributes)) if node.get("Var") == "context" else None


def _check_scopes(node: Any) -> None:
    """Raise ReadError for the scopes of an entity other than ``principal``, which no call tells."""
    operands = node.get(".") or node.get("has")
    if not operands or operands["attr"] != _SCOPES or operands["left"].get("Var") == "principal":
        return
    chain = _read_chain(operands["left"])
    if chain is None or chain[:1] != ("args",):
        raise ReadError("scopes are known of the principal only: write principal.scopes")


def _note_has(operands: Mapping[str, Any], reads: Reads, uses: dict[Path, set[ValueType]]) -> None:
    chain = _read_chain(operands["left"])
    if chain is None:
        _walk(operands["left"], "text", reads, uses)
    elif chain == ():
        if operands["attr"] != "args":
            reads.facts.add(operands["attr"])
    else:
        _note((*chain, operands["attr"]), "present", reads, uses)


def _note(chain: Path, expected: ValueType, reads: Reads, uses: dict[Path, set[ValueType]]) -> None:
    if not chain:
        raise ReadError("context is read as a whole; name the attributes that the policy reads")
    if chain[0] != "args":
        reads.facts.add(chain[0])
        return
    if len(chain) == 1:
        raise ReadError("context.args is read as a whole; name the arguments that the policy reads")
    if not _RESERVED.isdisjoint(chain):
        raise ReadError("an argument of such a name cannot be read: " + ", ".join(sorted(_RESERVED)))
    uses.setdefault(chain[1:], set()).add(expected)
