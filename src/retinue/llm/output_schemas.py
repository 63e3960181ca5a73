"""Fits JSON Schemas to what the APIs of vendors accept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_BRANCHES = ("anyOf", "oneOf", "allOf")
_OPEN = ("patternProperties", "propertyNames", "unevaluatedProperties", "dependentSchemas", "if", "not")


def close_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with the members that vendors want: the type and properties of objects, items of arrays.

    An object without a type at the top becomes one of the type object. The values that fit stay the same.
    """
    closed = {**_fill(schema)}
    if not any(key in closed for key in ("type", "$ref", *_BRANCHES)):
        closed = {"type": "object", **closed}
    if closed.get("type") == "object":
        closed.setdefault("properties", {})
    return closed


def _fill(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    filled = dict(schema)
    for key in ("properties", "$defs", "definitions", "patternProperties"):
        if isinstance(filled.get(key), Mapping):
            filled[key] = {name: _fill(member) for name, member in filled[key].items()}
    for key in _BRANCHES:
        if isinstance(filled.get(key), list):
            filled[key] = [_fill(branch) for branch in filled[key]]
    for key in ("items", "additionalProperties", "not"):
        if key in filled:
            filled[key] = _fill(filled[key])
    if filled.get("type") == "array" and "items" not in filled and "prefixItems" not in filled:
        filled["items"] = {}
    return filled


def is_expressible(schema: Any) -> bool:
    """Whether a vendor's native output can hold every value that fits the schema.

    Native output closes each object: it has the named properties only. An object with any properties, and a
    value of any type, cannot be expressed so.
    """
    if not isinstance(schema, Mapping) or any(key in schema for key in _OPEN):
        return False
    if "enum" in schema or "const" in schema:
        return True
    if "$ref" in schema:
        return _are_expressible(schema, "$defs", "definitions")
    branches = [branch for key in _BRANCHES if isinstance(schema.get(key), list) for branch in schema[key]]
    if branches:
        return all(is_expressible(branch) for branch in branches) and _are_expressible(
            schema, "$defs", "definitions", "properties"
        )
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if not kinds or any(not isinstance(kind, str) for kind in kinds):
        return False
    if "object" in kinds and (not schema.get("properties") or schema.get("additionalProperties")):
        return False
    if "array" in kinds and not is_expressible(schema.get("items")):
        return False
    return _are_expressible(schema, "$defs", "definitions", "properties")


def _are_expressible(schema: Mapping[str, Any], *keys: str) -> bool:
    return all(
        is_expressible(member)
        for key in keys
        if isinstance(schema.get(key), Mapping)
        for member in schema[key].values()
    )
