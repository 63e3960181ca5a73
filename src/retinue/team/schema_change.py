"""What a change of a JSON Schema breaks: for who sends arguments, and for who reads results.

The comparison is careful: a change of a keyword that it does not know counts as breaking.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_NOTES = frozenset({"title", "description", "examples", "default", "$schema", "$comment", "deprecated"})
"""Keywords that decide nothing."""

_COMPARED = frozenset({"type", "enum", "const", "properties", "required", "additionalProperties", "items"})
_LOWER = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_UPPER = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
_MAX_DEPTH = 32


def find_breaks(
    old: Mapping[str, Any] | None, new: Mapping[str, Any] | None, *, is_input: bool, where: str = ""
) -> list[str]:
    """The breaking changes from ``old`` to ``new`` as short texts, each with its path; [] for none.

    An input schema breaks by accepting less, an output schema by promising less. None accepts everything.
    """
    return list(_find(old or {}, new or {}, is_input, where or ("input" if is_input else "output"), 0))


def _find(old: Any, new: Any, is_input: bool, path: str, depth: int) -> Iterator[str]:
    if _plain(old) == _plain(new):
        return
    if depth > _MAX_DEPTH or not isinstance(old, Mapping) or not isinstance(new, Mapping):
        yield f"{path} changes"
        return
    yield from _find_values(old, new, is_input, path)
    yield from _find_bounds(old, new, is_input, path)
    yield from _find_properties(old, new, is_input, path, depth)
    if "items" in old or "items" in new:
        yield from _find(old.get("items", {}), new.get("items", {}), is_input, f"{path}[]", depth + 1)
    known = _NOTES | _COMPARED | _LOWER | _UPPER
    for key in sorted((old.keys() | new.keys()) - known):
        if old.get(key) != new.get(key):
            yield f"{path}: {key} changes"


def _find_values(old: Mapping[str, Any], new: Mapping[str, Any], is_input: bool, path: str) -> Iterator[str]:
    """Types, ``enum`` and ``const``: an input may take more, an output give less."""
    wide, narrow = (new, old) if is_input else (old, new)
    wide_types, narrow_types = _types(wide), _types(narrow)
    if wide_types is not None and (narrow_types is None or not narrow_types <= wide_types):
        yield f"{path}: its type changes from {_name(old)} to {_name(new)}"
    wide_values, narrow_values = _values(wide), _values(narrow)
    if wide_values is not None:
        if narrow_values is None:
            yield f"{path}: it {'takes' if is_input else 'gives'} other values"
        elif missing := [value for value in narrow_values if value not in wide_values]:
            verb = "no longer takes" if is_input else "gives"
            yield f"{path}: it {verb} {str(missing[0])[:40]}"


def _find_bounds(old: Mapping[str, Any], new: Mapping[str, Any], is_input: bool, path: str) -> Iterator[str]:
    for key in sorted((_LOWER | _UPPER) & (old.keys() | new.keys())):
        before, after = old.get(key), new.get(key)
        if before == after:
            continue
        if not all(bound is None or isinstance(bound, int | float) for bound in (before, after)):
            yield f"{path}: {key} changes"
            continue
        tighter = before is None or (after is not None and (after > before) == (key in _LOWER))
        if tighter == is_input:
            yield f"{path}: {key} changes from {before} to {after}"


def _find_properties(
    old: Mapping[str, Any], new: Mapping[str, Any], is_input: bool, path: str, depth: int
) -> Iterator[str]:
    before, after = _mapping(old, "properties"), _mapping(new, "properties")
    required_before, required_after = _names(old), _names(new)
    for name in sorted(before.keys() - after.keys()):
        if not is_input or new.get("additionalProperties") is False:
            yield f"{path}.{name} is gone"
    for name in sorted(before.keys() & after.keys()):
        yield from _find(before[name], after[name], is_input, f"{path}.{name}", depth + 1)
    if is_input:
        for name in sorted(required_after - required_before):
            yield f"{path}.{name} is required now"
        if new.get("additionalProperties") is False and old.get("additionalProperties", True) is not False:
            yield f"{path}: other fields are refused now"
    else:
        for name in sorted(required_before - required_after):
            yield f"{path}.{name} may be missing now"


def _names(schema: Mapping[str, Any]) -> set[str]:
    names = schema.get("required")
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def _types(schema: Mapping[str, Any]) -> set[str] | None:
    kinds = schema.get("type")
    if kinds is None:
        return None
    types = {kinds} if isinstance(kinds, str) else {*map(str, kinds if isinstance(kinds, list) else ())}
    return types | {"integer"} if "number" in types else types


def _values(schema: Mapping[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _name(schema: Mapping[str, Any]) -> str:
    return "/".join(sorted(_types(schema) or {"anything"}))


def _mapping(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = schema.get(key, {})
    return value if isinstance(value, Mapping) else {}


def _plain(schema: Any) -> Any:
    """The schema without the keywords that decide nothing; names of properties stay."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    plain = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions", "patternProperties") and isinstance(value, Mapping):
            plain[key] = {name: _plain(inner) for name, inner in value.items()}
        elif key not in _NOTES:
            plain[key] = value if key in ("enum", "const", "required") else _plain(value)
    return plain
