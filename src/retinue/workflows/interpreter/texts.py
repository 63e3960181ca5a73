"""Results as texts: what a prompt quotes, and whether an answer says anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

TEXT_KEYS = ("text", "output", "result", "answer", "response", "content", "message", "value")
"""Keys under which agents give their one text."""


def text_of(value: Any) -> str:
    """A value as text: itself, the one text that an object holds, else JSON."""
    value = unwrap(value)
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def unwrap(value: Any) -> Any:
    """What stands in an object that holds one thing only, under a key that means no more than that."""
    while isinstance(value, Mapping) and len(value) == 1:
        key, inner = next(iter(value.items()))
        if key not in TEXT_KEYS:
            return value
        value = inner
    return value


def is_nothing(value: Any) -> bool:
    """Whether a value says nothing: null, blank text, or a collection that holds nothing else."""
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, Mapping):
        return all(is_nothing(inner) for inner in value.values())
    if isinstance(value, (list, tuple)):
        return all(is_nothing(inner) for inner in value)
    return value is None


def is_no_answer(value: Any, schema: Mapping[str, Any] | None) -> bool:
    """Whether a skill gave nothing though its schema does not say that it may: null or blank text."""
    if isinstance(value, str):
        return not value.strip()
    return value is None and not _allows_null(schema or {})


def _allows_null(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    if kind == "null" or (isinstance(kind, list) and "null" in kind):
        return True
    if "const" in schema and schema["const"] is None:
        return True
    if None in (schema.get("enum") or ()):
        return True
    inner = [*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())]
    return any(isinstance(one, Mapping) and _allows_null(one) for one in inner)
