"""Pure: renders skills as MCP tools: entries, arguments, results and names.

``_meta`` holds the facts without a field in a tool entry: the id as authored, the agent, and which schemas
were wrapped because MCP requires objects at the root.

Names (specification 6.2): Claude, Codex and Copilot reject a whole session for one name outside
``^[A-Za-z0-9_-]{1,64}$``, and seed 004 writes ``fs:read_file``. Lists therefore show aliases, and a call may
use either spelling.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Literal

from retinue.core.record import Hints, Schema, Skill

SKILL_KEY = "retinue/skill"

AGENT_KEY = "retinue/agent"

WRAPPED_KEY = "retinue/wrapped"


INPUT_FIELD = "input"

RESULT_FIELD = "result"


FINDER = "find_skills"
"""The hub's tool that finds all others."""

SCREEN_CHARACTERS = 24 * 80
"""Longer descriptions are shortened in the list of a hub."""

SHORTENED = " … (shortened; find_skills has all of it)"

_PLAIN_TEXT: dict[str, Any] = {"type": "string"}
_ANY_OBJECT = {"type": "object", "additionalProperties": True}


def render_tool(skill: Skill, alias: str, *, agent: str | None = None) -> dict[str, Any]:
    """The entry of ``tools/list``; always with a description, which clients require.

    In the list of a hub (``agent``), a description is shortened to a screen.
    """
    full = skill.id if agent is None else f"{agent}: {skill.id}"
    title = skill.title or (full if alias != skill.id else None)
    tool: dict[str, Any] = {"name": alias}
    if title:
        tool["title"] = title
    tool["description"] = skill.description or skill.title or skill.id
    if agent is not None:
        tool["description"] = shorten_description(tool["description"])
    tool["inputSchema"] = render_input_schema(skill.input_schema)
    wrapped = ["input"] if is_input_wrapped(skill.input_schema) else []
    output_schema = render_output_schema(skill.output_schema)
    if output_schema is not None:
        if output_schema != _ANY_OBJECT:  # says no more to a client than that there is a result
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


def shorten_description(text: str) -> str:
    """The text if it fits on a screen, else its beginning, cut after a line, sentence or word.

    Every model that lists tools pays for every description; `find_skills` has the whole one.
    """
    if len(text) <= SCREEN_CHARACTERS:
        return text
    start = text[: SCREEN_CHARACTERS - len(SHORTENED)]
    for mark, keep in (("\n", 0), (". ", 1), (" ", 0)):
        at = start.rfind(mark)
        if at > len(start) // 2:
            return start[: at + keep].rstrip() + SHORTENED
    return start + SHORTENED


def is_input_wrapped(schema: Schema | None) -> bool:
    """Whether the arguments are wrapped in ``{"input": …}`` because the skill does not take an object."""
    return schema is not None and not _is_object(schema) and _may_be_other(schema)


def is_output_wrapped(schema: Schema | None) -> bool:
    """Whether the result is wrapped in ``{"result": …}`` because the skill does not return an object."""
    return schema is not None and not _is_object(schema)


def render_input_schema(schema: Schema | None) -> dict[str, Any]:
    """The schema with an object at its root."""
    if schema is None:
        return {"type": "object"}
    if is_input_wrapped(schema):
        return _wrap(schema, INPUT_FIELD)
    return dict(schema) if schema.get("type") == "object" else {"type": "object", **_less_type(schema)}


def render_output_schema(schema: Schema | None) -> dict[str, Any] | None:
    """The schema with an object at its root; None where nothing is promised.

    Any text whatever is no promise either, because the text block is the result, and a second copy of it as
    ``structuredContent`` would only double what a model reads.
    """
    if schema is None or dict(schema) == _PLAIN_TEXT or not schema:
        return None
    return _wrap(schema, RESULT_FIELD) if is_output_wrapped(schema) else dict(schema)


def read_arguments(schema: Schema | None, arguments: Mapping[str, Any] | None) -> Any:
    """The arguments of the skill, without the wrapping."""
    value = {} if arguments is None else arguments
    return value.get(INPUT_FIELD) if is_input_wrapped(schema) else value


def wrap_result(schema: Schema | None, value: Any) -> Any:
    """The value as ``structuredContent``; None where none is promised and the value is no object."""
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
    """The hints that the author set: MCP defines defaults for the others."""
    annotations = {
        "readOnlyHint": hints.read_only,
        "destructiveHint": hints.destructive,
        "idempotentHint": hints.idempotent,
        "openWorldHint": hints.open_world,
    }
    return {name: True for name, value in annotations.items() if value}


MAX_LENGTH = 64

AGENT_MARK = "__"
"""Between agent and skill in the tool name of another agent's skill."""


STANDARD_NAMES: Mapping[str, str] = {"agent.ask": "ask"}
"""Standard skills, whose ids begin with ``agent.``: in ``claude__ask`` the agent is named already."""


Names = Literal["safe", "seed"]
"""The names in lists: aliases, or the authors' own (setting ``mcp.names``)."""


_SAFE = re.compile(r"[A-Za-z0-9_-]{1,64}")

_VERSION_MARK = re.compile(r"@(\d+)$")

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")

_HASH_LENGTH = 8


def safe_names(ids: Iterable[str]) -> dict[str, str]:
    """An alias for each id: unique, safe, the same whatever the order of the ids.

    A safe id keeps its name. Any other has its characters replaced by ``_``; where that is taken, too
    long or empty, it is cut and ends in a hash of the id.
    """
    known = dict.fromkeys(ids)
    safe = {name for name in known if is_safe(name)}
    folded = {name: _UNSAFE.sub("_", name) for name in known if name not in safe}
    wanted = Counter(folded.values())
    taken = set(safe)
    aliases: dict[str, str] = {}
    hashed: list[str] = []
    for name in known:
        if name in safe:
            aliases[name] = name
        elif is_safe(folded[name]) and wanted[folded[name]] == 1 and folded[name] not in safe:
            aliases[name] = folded[name]
            taken.add(folded[name])
        else:
            hashed.append(name)
    for name in sorted(hashed):
        aliases[name] = _hashed(name, taken)
        taken.add(aliases[name])
    return {name: aliases[name] for name in known}


def is_safe(name: str) -> bool:
    """Whether every known client accepts this name."""
    return _SAFE.fullmatch(name) is not None


def list_spellings(agent: str | None, skill: str) -> tuple[str, ...]:
    """The spellings of a tool besides its alias that a call may use (specification 6.2:
    ``helpful-agent.calculate``).
    """
    if agent is None:
        return (skill,)
    spellings = tool_id(agent, skill), f"{agent}{AGENT_MARK}{skill}", f"{agent}.{skill}"
    return tuple(dict.fromkeys(spellings))


def list_agents_of(prefix: str) -> tuple[str, ...]:
    """The agents that the part of a tool name before the skill may mean: ``weather-v1`` is ``weather@1``."""
    name, mark, major = prefix.rpartition("-v")
    return (prefix, f"{name}@{major}") if mark and name and major.isdecimal() else (prefix,)


def _safe_version(agent: str) -> str:
    """``weather-v1`` for the older major version ``weather@1``, which no client accepts in a tool name."""
    return _VERSION_MARK.sub(r"-v\1", agent)


def tool_id(agent: str | None, skill: str) -> str:
    """The name from which the alias is made: ``<agent>__<skill>`` for a tool of another agent."""
    if agent is None:
        return skill
    return f"{_safe_version(agent)}{AGENT_MARK}{STANDARD_NAMES.get(skill, skill)}"


def _hashed(name: str, taken: set[str]) -> str:
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    stem = _UNSAFE.sub("_", name)[: MAX_LENGTH - 1 - _HASH_LENGTH]
    for length in range(_HASH_LENGTH, len(digest)):
        alias = f"{stem[: MAX_LENGTH - 1 - length]}_{digest[:length]}"
        if alias not in taken:
            return alias
    return digest[:MAX_LENGTH]
