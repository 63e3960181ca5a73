"""Pure: resources, templates and prompts as MCP lists them, and what reading them gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from retinue.core.call import Part
from retinue.core.record import Prompt, Resource
from retinue.protocols.mcp.content import render_part, value_as_text
from retinue.protocols.mcp.uris import is_template

MAX_COMPLETIONS = 100
"""More values than this are not allowed in one answer."""


def render_resources(resources: Iterable[Resource]) -> list[dict[str, Any]]:
    """The entries of ``resources/list``: those of one uri."""
    return [_render_resource(one, "uri") for one in resources if not is_template(one.uri)]


def render_templates(resources: Iterable[Resource]) -> list[dict[str, Any]]:
    """The entries of ``resources/templates/list``."""
    return [_render_resource(one, "uriTemplate") for one in resources if is_template(one.uri)]


def render_prompt(prompt: Prompt) -> dict[str, Any]:
    """The entry of ``prompts/list``."""
    entry: dict[str, Any] = {"name": prompt.name}
    if prompt.title:
        entry["title"] = prompt.title
    if prompt.description:
        entry["description"] = prompt.description
    entry["arguments"] = [
        {
            "name": one.name,
            **({"description": one.description} if one.description else {}),
            "required": one.required,
        }
        for one in prompt.arguments
    ]
    return entry


def render_contents(uri: str, parts: Iterable[Part]) -> list[dict[str, Any]]:
    """The contents of ``resources/read``; a part that is no resource becomes text of this uri."""
    return [_render_content(uri, part) for part in parts]


def render_message(role: str, part: Part) -> dict[str, Any]:
    """One message of ``prompts/get``."""
    return {"role": role, "content": render_part(part)}


def render_completion(values: Iterable[str], total: int | None = None) -> dict[str, Any]:
    """The answer of ``completion/complete``; what is over the cap is counted, not sent."""
    known = list(values)
    count = max(len(known), total or 0)
    return {"values": known[:MAX_COMPLETIONS], "total": count, "hasMore": count > MAX_COMPLETIONS}


def _render_resource(resource: Resource, key: str) -> dict[str, Any]:
    entry: dict[str, Any] = {key: resource.uri, "name": resource.name}
    if resource.title:
        entry["title"] = resource.title
    if resource.description:
        entry["description"] = resource.description
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
