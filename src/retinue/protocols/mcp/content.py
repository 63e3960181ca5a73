"""Pure: an outcome's value and parts as MCP content blocks, and blocks as parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from retinue.core.call import Part
from retinue.core.record import Schema
from retinue.protocols.mcp.tools import render_output_schema, wrap_result

_MEDIA = ("image", "audio")


def render_call_result(value: Any, parts: Iterable[Part], output_schema: Schema | None) -> dict[str, Any]:
    """A ``CallToolResult``: a text is itself (GOLDEN 4-4), other values are JSON as text and as data.

    Parts stand for the value where there are some, unless an output schema was promised.
    """
    blocks = [render_part(part) for part in parts]
    promised = render_output_schema(output_schema) is not None
    result: dict[str, Any] = {"content": blocks or [render_text(value_as_text(value))]}
    if not blocks or promised:
        structured = wrap_result(output_schema, value)
        if structured is not None:
            result["structuredContent"] = structured
    return result


def render_error_result(message: str, data: Any = None) -> dict[str, Any]:
    """A result that says what went wrong, so that a model reads it (SEP-1303); facts go to ``_meta``."""
    result: dict[str, Any] = {"content": [render_text(message)], "isError": True}
    if data is not None:
        result["_meta"] = {"retinue/error": data}
    return result


def render_text(text: str) -> dict[str, Any]:
    """One text block."""
    return {"type": "text", "text": text}


def value_as_text(value: Any) -> str:
    """How a value reads in a text block."""
    if isinstance(value, str):
        return value
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def render_part(part: Part) -> dict[str, Any]:
    """One content block; what MCP has no block for becomes text."""
    block: dict[str, Any]
    if part.kind in _MEDIA:
        block = {"type": part.kind, "data": part.value, "mimeType": part.mime}
    elif part.kind == "resource" and isinstance(part.value, Mapping):
        block = _render_resource(part)
    else:
        block = render_text(value_as_text(part.value))
    if part.annotations:
        block["annotations"] = dict(part.annotations)
    return block


def parse_block(block: Mapping[str, Any]) -> Part:
    """One content block as a part; an unknown one is kept as data."""
    kind = block.get("type")
    annotations = block.get("annotations") or {}
    if kind == "text" and isinstance(block.get("text"), str):
        return Part("text", block["text"], annotations=annotations)
    if kind in _MEDIA and isinstance(block.get("data"), str):
        mime = block.get("mimeType") or "application/octet-stream"
        return Part(kind, block["data"], mime, annotations=annotations)
    if kind == "resource" and isinstance(block.get("resource"), Mapping):
        contents = dict(block["resource"])
        mime = contents.pop("mimeType", None) or "text/plain"
        return Part("resource", contents, mime, annotations=annotations)
    if kind == "resource_link" and isinstance(block.get("uri"), str):
        return Part(
            "resource",
            {"uri": block["uri"]},
            block.get("mimeType") or "text/plain",
            name=block.get("name"),
            annotations=annotations,
        )
    return Part("data", dict(block), "application/json")


def _render_resource(part: Part) -> dict[str, Any]:
    """Embedded where the part has the content, else a link."""
    contents = dict(part.value)
    if "text" in contents or "blob" in contents:
        return {"type": "resource", "resource": {**contents, "mimeType": part.mime}}
    uri = contents.get("uri", "")
    return {"type": "resource_link", "uri": uri, "name": part.name or uri, "mimeType": part.mime}
