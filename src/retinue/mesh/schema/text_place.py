"""Finds the argument that a plain text is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def find_text_place(
    schema: Mapping[str, Any] | None, arguments: Mapping[str, Any] | None = None
) -> str | None:
    """The name of the argument that takes a text; None where it is not clear.

    It is the only required argument that ``arguments`` lack, if that is a string. Where nothing is required
    and there are no arguments, it is the only argument that is a string.
    """
    if schema is None:
        return None
    known = arguments or {}
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return None
    strings = [name for name, inner in properties.items() if is_string(inner) and name not in known]
    required = [name for name in schema.get("required", ()) if name not in known]
    if len(required) == 1:
        return required[0] if required[0] in strings else None
    return strings[0] if not required and not known and len(strings) == 1 else None


def is_string(schema: Any) -> bool:
    """Whether a schema is that of a string, which may be null."""
    if not isinstance(schema, Mapping):
        return False
    kind = schema.get("type")
    return kind == "string" or (isinstance(kind, list) and "string" in kind)
