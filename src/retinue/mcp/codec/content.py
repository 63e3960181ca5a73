"""Pure: converts between values or parts and MCP content blocks; renders resources and prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from retinue.core.call import Part
from retinue.core.parts import is_made_of_parts
from retinue.core.record import Prompt, Resource, Schema
from retinue.core.uri_template import is_template
from retinue.mcp.codec.tools import render_output_schema, wrap_result

SERVER_INFO_KEY = "io.modelcontextprotocol/serverInfo"

_MEDIA = ("image", "audio")
_LINK_KEYS = ("uri", "title", "description", "size")
_UNCACHED = {"ttlMs": 0, "cacheScope": "private"}
"""Lists depend on the caller and may change at any time; ``list_changed`` says when."""


def render_call_result(
    value: Any,
    parts: Iterable[Part],
    output_schema: Schema | None,
    *,
    is_whole: bool = False,
    is_compact: bool = False,
) -> dict[str, Any]:
    """A ``CallToolResult``: a text is itself, other values are JSON as text and as data.

    Parts stand for the value where there are some, unless an output schema was promised or the result goes
    to a program (``is_whole``). A text beside parts that lack it comes before them. ``is_compact`` = JSON
    as text without white space, and only once.
    """
    if is_compact and not is_whole and not isinstance(value, str):
        return {"content": [render_text(orjson.dumps(value).decode())]}
    listed = tuple(parts)
    if listed and is_made_of_parts(value, listed):
        value = None
    blocks = [render_part(part) for part in listed]
    if blocks and isinstance(value, str) and all(part.kind != "text" for part in listed):
        blocks.insert(0, render_text(value))
    result: dict[str, Any] = {"content": blocks or [render_text(value_as_text(value))]}
    if isinstance(value, dict) and (output_schema is None or output_schema.get("type") == "object"):
        # the usual case: an object is promised, or nothing
        structured = value if not blocks or output_schema is not None or is_whole else None
    elif not blocks or render_output_schema(output_schema) is not None:
        structured = wrap_result(output_schema, value)
    else:
        structured = None
    if structured is not None:
        result["structuredContent"] = structured
    return result


def render_error_result(message: str, data: Any = None) -> dict[str, Any]:
    """A failed result with its error as text for the model (SEP-1303); the facts go to ``_meta``."""
    result: dict[str, Any] = {"content": [render_text(message)], "isError": True}
    if data is not None:
        result["_meta"] = {"retinue/error": data}
    return result


def render_text(text: str) -> dict[str, Any]:
    """One text block."""
    return {"type": "text", "text": text}


def text_of(block: Mapping[str, Any]) -> str | None:
    """The text of a text block or of an embedded resource; None for any other block."""
    if block.get("type") == "text":
        return str(block["text"])
    if block.get("type") == "resource":
        text = block["resource"].get("text")
        return text if isinstance(text, str) else None
    return None


def count_characters(result: Mapping[str, Any]) -> int:
    """The characters of all texts in the content of a result."""
    return sum([len(text_of(block) or "") for block in result["content"]])


def value_as_text(value: Any) -> str:
    """A value as the text of a block."""
    if isinstance(value, str):
        return value
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def complete_result(
    result: dict[str, Any], server_info: Mapping[str, Any] | None = None, *, cacheable: bool = False
) -> dict[str, Any]:
    """The result with the fields that 2026-07-28 requires; ``server_info``: the server's name and version."""
    completed = {"resultType": "complete", **(_UNCACHED if cacheable else {}), **result}
    if server_info is not None:
        completed["_meta"] = {**result.get("_meta", {}), SERVER_INFO_KEY: server_info}
    return completed


def render_part(part: Part) -> dict[str, Any]:
    """One content block; a part without a matching MCP block becomes text."""
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
        kept = {key: entry for key, entry in block.items() if key in _LINK_KEYS}
        return Part(
            "resource",
            kept,
            block.get("mimeType") or "text/plain",
            name=block.get("name"),
            annotations=annotations,
        )
    return Part("data", dict(block), "application/json")


def _render_resource(part: Part) -> dict[str, Any]:
    """An embedded resource if the part has the content, else a link."""
    contents = dict(part.value)
    if "text" in contents or "blob" in contents:
        return {"type": "resource", "resource": {**contents, "mimeType": part.mime}}
    uri = contents.get("uri", "")
    more = {key: entry for key, entry in contents.items() if key in _LINK_KEYS}
    return {"type": "resource_link", **more, "uri": uri, "name": part.name or uri, "mimeType": part.mime}


MAX_COMPLETIONS = 100
"""MCP allows no more values in one response."""


def render_resources(resources: Iterable[Resource]) -> list[dict[str, Any]]:
    """The entries of ``resources/list``: resources with a fixed URI."""
    return [_render_listed(resource, "uri") for resource in resources if not is_template(resource.uri)]


def render_templates(resources: Iterable[Resource]) -> list[dict[str, Any]]:
    """The entries of ``resources/templates/list``."""
    return [_render_listed(resource, "uriTemplate") for resource in resources if is_template(resource.uri)]


def render_prompt(prompt: Prompt) -> dict[str, Any]:
    """The entry of ``prompts/list``."""
    entry: dict[str, Any] = {"name": prompt.name}
    if prompt.title:
        entry["title"] = prompt.title
    if prompt.description:
        entry["description"] = prompt.description
    entry["arguments"] = [
        {
            "name": argument.name,
            **({"description": argument.description} if argument.description else {}),
            "required": argument.required,
        }
        for argument in prompt.arguments
    ]
    return entry


def render_contents(uri: str, parts: Iterable[Part]) -> list[dict[str, Any]]:
    """The contents of ``resources/read``; a part other than a resource becomes text of this URI."""
    return [_render_content(uri, part) for part in parts]


def render_message(role: str, part: Part) -> dict[str, Any]:
    """One message of ``prompts/get``."""
    return {"role": role, "content": render_part(part)}


def render_completion(values: Iterable[str], total: int | None = None) -> dict[str, Any]:
    """The result of ``completion/complete``; values over the cap are counted, not sent."""
    known = list(values)
    count = max(len(known), total or 0)
    return {"values": known[:MAX_COMPLETIONS], "total": count, "hasMore": count > MAX_COMPLETIONS}


def _render_listed(resource: Resource, key: str) -> dict[str, Any]:
    entry: dict[str, Any] = {key: resource.uri, "name": resource.name}
    if resource.title:
        entry["title"] = resource.title
    if resource.description:
        entry["description"] = resource.description
    if resource.mime:
        entry["mimeType"] = resource.mime
    return entry


def _render_content(uri: str, part: Part) -> dict[str, Any]:
    if part.kind == "resource" and isinstance(part.value, Mapping):
        content = {"uri": uri, **part.value}
        if "text" not in content and "blob" not in content:
            content["text"] = ""
        return {"uri": content.pop("uri"), "mimeType": part.mime, **content}
    if part.kind in ("image", "audio"):
        return {"uri": uri, "mimeType": part.mime, "blob": part.value}
    return {"uri": uri, "mimeType": part.mime, "text": value_as_text(part.value)}
