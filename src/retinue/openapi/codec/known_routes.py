"""Pure: describes the routes of hubs and agents that are no skills, as operations of an OpenAPI document.

A document holds those that its process has declared. Protocols with clients of their own (MCP, A2A, KOI, the
registry) and pages for browsers are not described.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from retinue.openapi.codec.description import DOCUMENT_PATH, reference_errors

_VARIABLE = re.compile(r"\{(\w+)(?::\w+)?\}")
_OBJECT: Mapping[str, Any] = {"type": "object"}
_ANY: Mapping[str, Any] = {}

_ID: Mapping[str, Any] = {"type": ["string", "integer", "null"]}
_JSON_RPC: Mapping[str, Any] = {
    "type": "object",
    "required": ["jsonrpc", "method"],
    "properties": {
        "jsonrpc": {"const": "2.0"},
        "method": {"type": "string", "description": "The id of a skill."},
        "params": {"type": "object", "description": "The arguments of the skill."},
        "id": _ID,
    },
}
_JSON_RPC_REPLY: Mapping[str, Any] = {
    "type": "object",
    "required": ["jsonrpc", "id"],
    "properties": {
        "jsonrpc": {"const": "2.0"},
        "id": _ID,
        "result": {"description": "The value of the skill."},
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {"code": {"type": "integer"}, "message": {"type": "string"}, "data": _ANY},
        },
    },
}
_MESSAGE: Mapping[str, Any] = {
    "type": "object",
    "required": ["performative", "payload"],
    "properties": {
        "performative": {"type": "string"},
        "payload": _OBJECT,
        **{name: {"type": "string"} for name in ("message_id", "in_reply_to", "reply_with", "ontology")},
    },
}
_TOOLS: Mapping[str, Any] = {
    "type": "object",
    "required": ["tools"],
    "properties": {
        "tools": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string"},
                    "description": {"type": "string"},
                    "url": {"type": ["string", "null"]},
                    "inputSchema": _OBJECT,
                },
            },
        }
    },
}
_RESOURCES: Mapping[str, Any] = {
    "type": "object",
    "required": ["resources"],
    "properties": {"resources": {"type": "array", "items": _OBJECT}},
}
_RESULT: Mapping[str, Any] = {
    "type": "object",
    "required": ["result"],
    "properties": {"result": {"description": "The value of the skill."}},
}

_FILE: Mapping[str, Any] = {"type": "string", "format": "binary"}
"""The bytes of a file, of any media type."""

_LINK: Mapping[str, Any] = {
    "type": "object",
    "required": ["artifact", "size", "media_type"],
    "properties": {
        "artifact": {"type": "string", "description": "The digest of the content."},
        "size": {"type": "integer", "description": "In bytes."},
        "media_type": {"type": "string"},
        "name": {"type": ["string", "null"]},
    },
}
_LINKS: Mapping[str, Any] = {
    "type": "object",
    "required": ["artifacts"],
    "properties": {"artifacts": {"type": "array", "items": _LINK}},
}

_Row = tuple[str, str, str, Mapping[str, Any] | None, Mapping[str, Any]]
"""Method, id of the operation, summary, schema of the body (None without one), schema of the response."""

_OF_AGENTS: Mapping[str, _Row] = {
    "/execute": ("post", "execute", "Call a skill by JSON-RPC 2.0", _JSON_RPC, _JSON_RPC_REPLY),
    "/messages": ("post", "send_message", "Send a message with a performative", _MESSAGE, _MESSAGE),
    "/agent-card": ("get", "read_agent_card", "Read the agent card", None, _OBJECT),
    "/tools/list": ("get", "list_tools", "List the callable skills", None, _TOOLS),
    "/resources/list": ("get", "list_resources", "List the agents as resources", None, _RESOURCES),
    "/resources/read/{id}": ("get", "read_resource", "Read the profile of an agent", None, _OBJECT),
    "/tools/call/{trait}": ("post", "call_tool", "Call any skill by its id", _OBJECT, _RESULT),
    DOCUMENT_PATH: ("get", "read_openapi", "Read the OpenAPI document", None, _OBJECT),
}
"""The routes that exist for the process itself and, at a hub, for each agent below ``/agents/{agent}``."""

_OF_PROCESSES: Mapping[str, _Row] = {
    "/health": ("get", "check_health", "Whether the process is alive", None, _OBJECT),
    "/ready": ("get", "check_readiness", "Whether the process can serve callers", None, _OBJECT),
    "/search": ("post", "search_resources", "Search agents (Agentic Resource Discovery)", _OBJECT, _OBJECT),
}

_OF_ARTIFACTS: tuple[tuple[str, _Row], ...] = (
    ("/artifacts", ("post", "save_artifact", "Save a file; its body is the content", _FILE, _LINK)),
    ("/artifacts", ("get", "list_artifacts", "List the files that the caller has saved", None, _LINKS)),
    ("/artifacts/{digest}", ("get", "read_artifact", "Read a file, or a range of it", None, _FILE)),
    ("/artifacts/{digest}", ("delete", "delete_artifact", "End the caller's save of a file", None, _OBJECT)),
    ("/artifacts/{digest}/holders", ("get", "show_artifact", "Who holds a file", None, _OBJECT)),
)

_AT_AGENT = "/agents/{agent}"
KNOWN: Mapping[tuple[str, str], _Row] = {
    (row[0], path): row
    for path, row in (
        *_OF_ARTIFACTS,
        *_OF_PROCESSES.items(),
        *_OF_AGENTS.items(),
        *(
            (f"{_AT_AGENT}{path}", (method, f"agent_{name}", f"{summary} of an agent", body, reply))
            for path, (method, name, summary, body, reply) in _OF_AGENTS.items()
        ),
    )
}
"""Every described route by method and path."""


def list_operations(declared: Iterable[tuple[str, str]]) -> list[tuple[str, str, dict[str, Any]]]:
    """Method, path and operation of the described routes among those that a process has ``declared``.

    ``declared`` are methods and paths as Starlette writes them, such as ``/resources/read/{id:path}``.
    """
    routes = {(method.lower(), _VARIABLE.sub(r"{\1}", path)) for method, path in declared}
    return [
        (method, path, _render(path, row))
        for (method, path), row in KNOWN.items()
        if (method, path) in routes
    ]


def _render(path: str, row: _Row) -> dict[str, Any]:
    _, operation_id, summary, body, reply = row
    operation: dict[str, Any] = {"operationId": operation_id, "summary": summary}
    variables = _VARIABLE.findall(path)
    if variables:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in variables
        ]
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {_media_type(body): {"schema": body}}}
    content = {_media_type(reply): {"schema": reply}}
    status = "201" if body is _FILE else "200"
    operation["responses"] = {status: {"description": "The response.", "content": content}}
    operation["responses"] |= reference_errors()
    return operation


def _media_type(schema: Mapping[str, Any]) -> str:
    return "application/octet-stream" if schema is _FILE else "application/json"
