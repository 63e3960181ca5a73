"""Pure: builds the OpenAPI 3.1 document of a process: its routes, and the skills of its agents as operations.

A skill is ``POST …/tools/call/<skill>``: the arguments are the body, the value is ``result`` of the response.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import quote

import orjson

from retinue.cards.personality_profile import FREE_INPUT, object_schema
from retinue.core.record import AgentRecord, Skill
from retinue.openapi.codec.components import embed_schema
from retinue.web.error_table import list_error_classes, row_of

VERSION = "3.1.0"
DOCUMENT_PATH = "/openapi.json"

MAX_OPERATIONS = 2_000
"""Operations of one document, as many as an import of Retinue reads."""

MAX_BYTES = 8 * 1024 * 1024
MAX_ID_LENGTH = 64

_HASH_LENGTH = 8
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_BEARER = "bearer"
_ERROR_RANGES = {"4": ("Refused", "The request was refused."), "5": ("Failed", "The call failed.")}

_ERROR_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "required": ["detail"],
    "properties": {
        "detail": {"description": "The error for a person."},
        "code": {"type": "integer", "description": "The code of the error at /execute."},
        "data": {
            "type": "object",
            "properties": {
                "type": {"type": "string", "description": "The type of the error; it does not change."},
                "remedy": {"type": "string"},
                "errors": {
                    "type": "array",
                    "description": "The problems of invalid arguments.",
                    "items": {
                        "type": "object",
                        "properties": {"path": {"type": "string"}, "message": {"type": "string"}},
                    },
                },
            },
        },
    },
}


@dataclass(frozen=True, slots=True)
class Frame:
    """What a document says besides its operations; ``server`` is the base URL of the process.

    Without ``anonymous`` every operation needs a token.
    """

    title: str
    version: str
    description: str
    server: str
    anonymous: bool


@dataclass(slots=True)
class DocumentBuilder:
    """Collects operations up to `MAX_OPERATIONS` and `MAX_BYTES`; each is encoded when it is added."""

    paths: dict[str, dict[str, orjson.Fragment]] = field(default_factory=dict)
    tags: list[Mapping[str, Any]] = field(default_factory=list)
    schemas: dict[str, orjson.Fragment] = field(default_factory=dict)
    operations: int = 0
    _bytes: int = field(default=0, init=False)
    _ids: set[str] = field(default_factory=set, init=False)

    @property
    def is_full(self) -> bool:
        return self.operations >= MAX_OPERATIONS or self._bytes >= MAX_BYTES

    def add_route(self, method: str, path: str, operation: Mapping[str, Any]) -> None:
        """Add an operation of a route that is not a skill."""
        self._ids.add(operation["operationId"])
        self._add(method, path, operation, {})

    def add_tag(self, agent: AgentRecord, name: str) -> None:
        """Add the tag of an agent, by which its operations are grouped."""
        text = agent.description or agent.title
        self.tags.append({"name": name, **({"description": text} if text else {})})

    def add_skill(self, skill: Skill, agent: str, prefix: str, *, named: bool) -> bool:
        """Add the skill of an agent below the path ``prefix``; False if the document is full.

        ``named``: the id of the operation begins with the agent's name.
        """
        if self.is_full:
            return False
        components: dict[str, Any] = {}
        path = f"{prefix}/tools/call/{quote(skill.id, safe='/:')}"
        operation_id = self._make_id(f"{agent}__{skill.id}" if named else skill.id, path)
        self._add("post", path, _render_skill(skill, agent, operation_id, components), components)
        self.operations += 1
        return True

    def render(self, frame: Frame, *, left_out: str = "") -> bytes:
        """The document as JSON; ``left_out`` says what is not in it."""
        description = "\n\n".join(filter(None, (frame.description, left_out)))
        info = {"title": frame.title, "version": frame.version, "description": description}
        token = "A token of this mesh (`retinue token new`), or one of its authorization server."  # noqa: S105
        document = {
            "openapi": VERSION,
            "info": {key: value for key, value in info.items() if value},
            "servers": [{"url": frame.server}],
            "security": [{_BEARER: []}] if not frame.anonymous else [{}, {_BEARER: []}],
            "tags": self.tags,
            "paths": self.paths,
            "components": {
                "securitySchemes": {_BEARER: {"type": "http", "scheme": "bearer", "description": token}},
                "responses": _render_responses(),
                "schemas": {"Error": _ERROR_SCHEMA, **self.schemas},
            },
        }
        return orjson.dumps(document)

    def _add(
        self, method: str, path: str, operation: Mapping[str, Any], components: Mapping[str, Any]
    ) -> None:
        encoded = orjson.dumps(operation)
        self._bytes += len(encoded)
        self.paths.setdefault(path, {})[method] = orjson.Fragment(encoded)
        for name, schema in components.items():
            encoded = orjson.dumps(schema)
            self._bytes += len(encoded)
            self.schemas[name] = orjson.Fragment(encoded)

    def _make_id(self, text: str, path: str) -> str:
        """A unique id of safe characters, by which generators name functions and Retinue names skills."""
        name = _UNSAFE.sub("_", text)
        if len(name) > MAX_ID_LENGTH or name in self._ids:
            digest = sha256(path.encode()).hexdigest()[:_HASH_LENGTH]
            name = f"{name[: MAX_ID_LENGTH - 1 - _HASH_LENGTH]}_{digest}"
        self._ids.add(name)
        return name


def reference_errors() -> dict[str, Any]:
    """The responses of every operation for errors, by ranges of statuses."""
    return {
        f"{digit}XX": {"$ref": f"#/components/responses/{name}"} for digit, (name, _) in _ERROR_RANGES.items()
    }


def _render_skill(skill: Skill, agent: str, operation_id: str, components: dict[str, Any]) -> dict[str, Any]:
    schema = _input_of(skill)
    media: dict[str, Any] = {"schema": embed_schema(schema, f"{operation_id}.input", components)}
    examples = [example.arguments for example in skill.examples if example.arguments is not None]
    if examples:
        media["example"] = examples[0]
    output = {} if skill.output_schema is None else skill.output_schema
    result = {
        "type": "object",
        "required": ["result"],
        "properties": {"result": embed_schema(output, f"{operation_id}.output", components)},
    }
    operation: dict[str, Any] = {"operationId": operation_id, "tags": [agent]}
    if skill.title:
        operation["summary"] = skill.title
    if skill.description:
        operation["description"] = skill.description
    if skill.hints.runs_code:
        operation["security"] = [{_BEARER: []}]
    return operation | {
        "requestBody": {
            "required": bool(schema.get("required")),
            "content": {"application/json": media},
        },
        "responses": {
            "200": {
                "description": "The result of the skill.",
                "content": {"application/json": {"schema": result}},
            },
            **reference_errors(),
        },
    }


def _input_of(skill: Skill) -> Mapping[str, Any]:
    """The schema of the arguments, an object, as the list of tools has it."""
    schema = skill.input_schema
    if schema is None:
        return FREE_INPUT
    return schema if "type" not in schema else object_schema({"input_schema": dict(schema)})


def _render_responses() -> dict[str, Any]:
    """The responses for errors; the description lists each status with its types of errors."""
    types: dict[int, list[str]] = {}
    for kind in list_error_classes():
        types.setdefault(row_of(kind).rest, []).append(kind.type)
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    responses = {}
    for digit, (name, text) in _ERROR_RANGES.items():
        rows = [
            f"{status}: {', '.join(dict.fromkeys(types[status]))}"
            for status in sorted(types)
            if str(status).startswith(digit)
        ]
        responses[name] = {"description": "\n\n".join((text, *rows)), "content": content}
    return responses


def list_left_out(names: Sequence[str], *, more: bool) -> str:
    """The sentence about agents that have no place in the document."""
    if not names and not more:
        return ""
    shown = ", ".join(names[:20])
    rest = " and further agents" if more or len(names) > 20 else ""
    return (
        f"The document is cut at {MAX_OPERATIONS:,} operations: {shown}{rest} are not in it. Each agent has "
        f"a document of its own at /agents/NAME{DOCUMENT_PATH}; the skill find_skills searches all of them."
    )
