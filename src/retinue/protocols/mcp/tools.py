"""Pure: a skill as an MCP tool, and the arguments of ``tools/call`` as those of the skill.

What a tool cannot say keeps its place in ``_meta`` (DESIGN 2, renderings): the id as authored, the agent,
and which schemas were wrapped because MCP wants objects at the root.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.core.record import Hints, Schema, Skill

SKILL_KEY = "retinue/skill"
AGENT_KEY = "retinue/agent"
WRAPPED_KEY = "retinue/wrapped"

INPUT_FIELD = "input"
RESULT_FIELD = "result"

_PLAIN_TEXT: dict[str, Any] = {"type": "string"}


def render_tool(skill: Skill, alias: str, *, agent: str | None = None) -> dict[str, Any]:
    """The entry of ``tools/list``; never without a description, which clients demand."""
    full = skill.id if agent is None else f"{agent}: {skill.id}"
    title = skill.title or (full if alias != skill.id else None)
    tool: dict[str, Any] = {"name": alias}
    if title:
        tool["title"] = title
    tool["description"] = skill.description or skill.title or skill.id
    tool["inputSchema"] = render_input_schema(skill.input_schema)
    wrapped = ["input"] if is_input_wrapped(skill.input_schema) else []
    output_schema = render_output_schema(skill.output_schema)
    if output_schema is not None:
        tool["outputSchema"] = output_schema
        if is_output_wrapped(skill.output_schema):
            wrapped.append("result")
    if annotations := _render_hints(skill.hints):
        tool["annotations"] = annotations
    meta: dict[str, Any] = {SKILL_KEY: skill.id}
    if agent is not None:
        meta[AGENT_KEY] = agent
    if wrapped:
        meta[WRAPPED_KEY] = wrapped
    tool["_meta"] = meta
    return tool


def is_input_wrapped(schema: Schema | None) -> bool:
    """Whether the arguments travel inside ``{"input": …}``, the skill wanting no object."""
    return schema is not None and not _is_object(schema) and _may_be_other(schema)


def is_output_wrapped(schema: Schema | None) -> bool:
    """Whether the result travels inside ``{"result": …}``, the skill giving no object."""
    return schema is not None and not _is_object(schema)


def render_input_schema(schema: Schema | None) -> dict[str, Any]:
    """The schema with an object at its root."""
    if schema is None:
        return {"type": "object"}
    if is_input_wrapped(schema):
        return _wrap(schema, INPUT_FIELD)
    return dict(schema) if schema.get("type") == "object" else {"type": "object", **_less_type(schema)}


def render_output_schema(schema: Schema | None) -> dict[str, Any] | None:
    """The schema with an object at its root; None where there is nothing to promise.

    Any text whatever is no promise either: the text block is the result, and a second copy of it as
    ``structuredContent`` would only double what a model reads.
    """
    if schema is None or dict(schema) == _PLAIN_TEXT or not schema:
        return None
    return _wrap(schema, RESULT_FIELD) if is_output_wrapped(schema) else dict(schema)


def read_arguments(schema: Schema | None, arguments: Mapping[str, Any] | None) -> Any:
    """The skill's arguments, out of the wrapping where there is one."""
    given = {} if arguments is None else arguments
    return given.get(INPUT_FIELD) if is_input_wrapped(schema) else given


def wrap_result(schema: Schema | None, value: Any) -> Any:
    """The value as ``structuredContent``; None where none was promised or it cannot be one."""
    if render_output_schema(schema) is None:
        return value if isinstance(value, dict) else None
    if is_output_wrapped(schema):
        return {RESULT_FIELD: value}
    return value if isinstance(value, dict) else None


def _is_object(schema: Schema) -> bool:
    return schema.get("type") == "object"


def _may_be_other(schema: Schema) -> bool:
    """Whether something other than an object fits; a schema without a type says nothing about it."""
    kind = schema.get("type")
    if kind is not None:
        return "object" not in kind if isinstance(kind, list) else True
    return bool(set(schema) & {"anyOf", "oneOf", "allOf", "enum", "const", "$ref", "items"})


def _wrap(schema: Schema, field: str) -> dict[str, Any]:
    """The schema inside an object; its definitions move to the root, where ``#/$defs/…`` points."""
    inner = dict(schema)
    wrapped: dict[str, Any] = {"type": "object", "properties": {field: inner}, "required": [field]}
    for key in ("$defs", "definitions", "$schema"):
        if key in inner:
            wrapped[key] = inner.pop(key)
    return wrapped


def _less_type(schema: Schema) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "type"}


def _render_hints(hints: Hints) -> dict[str, bool]:
    """Only what the author said: an absent hint has MCP's default."""
    given = {
        "readOnlyHint": hints.read_only,
        "destructiveHint": hints.destructive,
        "idempotentHint": hints.idempotent,
        "openWorldHint": hints.open_world,
    }
    return {name: True for name, said in given.items() if said}
