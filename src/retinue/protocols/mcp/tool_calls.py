"""Pure: one tool call of 2026-07-28 as a client writes it, and its results as a skill's value.

What a hub says to an agent of the mesh when a caller listens: the reverse of what the MCP door renders
(https://modelcontextprotocol.io/specification/2026-07-28).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from retinue.core.call import Answer
from retinue.core.errors import CannotAskError, RemoteFaultError, RetinueError
from retinue.core.record import Schema, Skill
from retinue.protocols.mcp.content import parse_block
from retinue.protocols.mcp.messages import Reply
from retinue.protocols.mcp.tools import INPUT_FIELD, RESULT_FIELD, is_input_wrapped, is_output_wrapped

VERSION = "2026-07-28"
WHOLE_KEY = "retinue/whole"
"""In ``_meta`` of a call: the result goes to a program, which wants it whole however long it is."""

ERROR_KEY = "retinue/error"

_META = "io.modelcontextprotocol/"
_LACKING = -32021
"""The caller lacks a capability that the tool needs (2026-07-28)."""

_LEVELS = {"debug": "debug", "info": "info", "notice": "info", "warning": "warning"}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of ``skill``; ``answers`` and ``state`` continue one that has asked something back."""

    skill: Skill
    arguments: Any
    capabilities: frozenset[str]
    meta: Mapping[str, Any] = field(default_factory=dict)
    answers: Mapping[str, Any] | None = None
    state: str | None = None

    def headers(self) -> dict[str, str]:
        """The headers that belong to the message."""
        return {**_headers("tools/call"), "mcp-name": encode_header(self.skill.id)}

    def render(self, client: str, client_version: str) -> bytes:
        """The message; raises TypeError when the arguments are no JSON."""
        wrapped = is_input_wrapped(self.skill.input_schema)
        asked: dict[str, Any] = {
            one: {} for one in ("elicitation", "sampling", "roots") if one in self.capabilities
        }
        meta: dict[str, Any] = {
            f"{_META}protocolVersion": VERSION,
            f"{_META}clientCapabilities": asked,
            f"{_META}clientInfo": {"name": client, "version": client_version},
            WHOLE_KEY: True,
            **self.meta,
        }
        if "progress" in self.capabilities:
            meta["progressToken"] = "call"
        if "log" in self.capabilities:
            meta[f"{_META}logLevel"] = "debug"
        params: dict[str, Any] = {
            "name": self.skill.id,
            "arguments": {INPUT_FIELD: self.arguments} if wrapped else self.arguments,
            "_meta": meta,
        }
        if self.answers is not None:
            params["inputResponses"] = dict(self.answers)
        if self.state is not None:
            params["requestState"] = self.state
        return orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})


def render_list() -> tuple[bytes, dict[str, str]]:
    """The request for the list of tools, and the headers that belong to it."""
    meta = {
        f"{_META}protocolVersion": VERSION,
        f"{_META}clientCapabilities": {},
        f"{_META}clientInfo": {"name": "retinue", "version": "1"},
    }
    body = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}})
    return body, _headers("tools/list")


def _headers(method: str) -> dict[str, str]:
    return {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": VERSION,
        "mcp-method": method,
    }


@dataclass(frozen=True, slots=True)
class Told:
    """What an agent says while it works: progress (``fraction``, ``text``) or a log line."""

    kind: str
    text: str = ""
    fraction: float | None = None
    level: str = "info"
    data: Mapping[str, Any] | None = None


def read_told(data: bytes) -> Told | None:
    """The progress or log line in one event; None for anything else."""
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(document, dict) or not isinstance(document.get("params"), dict):
        return None
    params = document["params"]
    if document.get("method") == "notifications/progress":
        total, progress, text = params.get("total"), params.get("progress"), params.get("message")
        known = isinstance(total, int | float) and isinstance(progress, int | float) and total > 0
        return Told("progress", text if isinstance(text, str) else "", progress / total if known else None)
    if document.get("method") == "notifications/message":
        level = _LEVELS.get(params.get("level"), "error")
        said = params.get("data")
        if isinstance(said, dict) and isinstance(said.get("message"), str):
            rest = {key: value for key, value in said.items() if key != "message"}
            return Told("log", said["message"], level=level, data=rest)
        return Told("log", said if isinstance(said, str) else orjson.dumps(said).decode(), level=level)
    return None


def read_answer(reply: Reply, agent: str, skill: Skill) -> Answer:
    """The value and parts of a result; raises RemoteFaultError with what the agent says has failed."""
    if reply.error is not None:
        raise _read_error(reply.error, agent, skill)
    result = reply.result or {}
    if reply.is_tool_error:
        meta = result.get("_meta")
        facts = meta.get(ERROR_KEY) if isinstance(meta, dict) else None
        raise RemoteFaultError(agent, -32603, reply.text or "the tool failed", facts)
    content = result.get("content")
    blocks = [one for one in content if isinstance(one, dict)] if isinstance(content, list) else []
    plain = len(blocks) == 1 and blocks[0].get("type") == "text"
    parts = () if plain else tuple(parse_block(block) for block in blocks)
    if "structuredContent" not in result:
        return Answer(value=reply.text if plain else None, parts=parts)
    return Answer(value=_unwrap(result["structuredContent"], skill.output_schema), parts=parts)


def list_questions(reply: Reply) -> Iterable[tuple[str, str, Mapping[str, Any]]]:
    """The questions of a result that wants input: key, method, parameters."""
    asked = (reply.result or {}).get("inputRequests")
    for key, request in (asked if isinstance(asked, dict) else {}).items():
        if isinstance(request, dict) and isinstance(request.get("method"), str):
            params = request.get("params")
            yield key, request["method"], params if isinstance(params, dict) else {}


def read_state(reply: Reply) -> str | None:
    """What names the call that waits for its answers."""
    state = (reply.result or {}).get("requestState")
    return state if isinstance(state, str) else None


def encode_header(text: str) -> str:
    """A name as a header may carry it; others travel in base64, as the specification has it."""
    plain = text.isascii() and text.isprintable() and text == text.strip()
    if plain and not (text.startswith("=?base64?") and text.endswith("?=")):
        return text
    return f"=?base64?{b64encode(text.encode()).decode()}?="


def _unwrap(structured: Any, schema: Schema | None) -> Any:
    if is_output_wrapped(schema) and isinstance(structured, dict) and set(structured) == {RESULT_FIELD}:
        return structured[RESULT_FIELD]
    return structured


def _read_error(error: Mapping[str, Any], agent: str, skill: Skill) -> RetinueError:
    code, message, data = error.get("code"), error.get("message"), error.get("data")
    if code == -32602 and isinstance(message, str) and message.startswith("Unknown tool"):
        # as ``/execute`` would say it, so that the card is read again
        return RemoteFaultError(agent, -32601, f"Unknown skill: {skill.id}", {"type": "unknown_skill"})
    if code == _LACKING and isinstance(data, dict) and isinstance(data.get("requiredCapabilities"), dict):
        return CannotAskError(next(iter(data["requiredCapabilities"]), "capability"))
    code = code if type(code) is int else -32603
    return RemoteFaultError(agent, code, message if isinstance(message, str) else "no message given", data)
