"""Pure: renders a client's tool call of 2026-07-28, and reads its result as the value of a skill.

The reverse of what `mcp.server` renders (https://modelcontextprotocol.io/specification/2026-07-28).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from retinue.core.call import Answer, TextPiece
from retinue.core.errors import CannotAskError, RemoteFaultError, RetinueError
from retinue.core.record import Schema, Skill
from retinue.core.usage import read_usage
from retinue.mcp.codec.content import parse_block
from retinue.mcp.codec.messages import Message, Reply
from retinue.mcp.codec.tools import INPUT_FIELD, RESULT_FIELD, is_input_wrapped, is_output_wrapped
from retinue.mcp.codec.wire import VERSION_KEY, encode_header
from retinue.web.codec.jsonrpc import find_guard_error
from retinue.web.codec.trace import CALLS_USED_KEY, USAGE_KEY, WARNINGS_KEY

VERSION = "2026-07-28"
WHOLE_KEY = "retinue/whole"
"""In ``_meta`` of a call: the result goes to a program and must not be shortened."""

TEXT_KEY = "retinue/text"
"""In ``_meta`` of a notification of progress: a piece of a text, which its message repeats for people."""

ERROR_KEY = "retinue/error"
CODE_FACT, MESSAGE_FACT = "code", "message"
"""In the facts of a failed result: code and message as ``/execute`` has them, where they differ."""

_META = "io.modelcontextprotocol/"
_LACKING = -32021
"""The caller lacks a capability that the tool needs (2026-07-28)."""

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")

_LEVELS = {"debug": "debug", "info": "info", "notice": "info", "warning": "warning"}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of ``skill``; ``answers`` and ``state`` continue a call that asked for input."""

    skill: Skill
    arguments: Any
    capabilities: frozenset[str]
    answers: Mapping[str, Any] | None = None
    state: str | None = None

    def as_message(self, client: str, client_version: str) -> Message:
        """The request, with the client's name and version."""
        wrapped = is_input_wrapped(self.skill.input_schema)
        asked: dict[str, Any] = {
            name: {} for name in ("elicitation", "sampling", "roots") if name in self.capabilities
        }
        meta = {**_client_meta(client, client_version, asked), WHOLE_KEY: True}
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
        message = _as_request("tools/call", params)
        return replace(message, param_headers=param_headers(self.skill.input_schema, params["arguments"]))


def param_headers(schema: Schema | None, arguments: Any) -> dict[str, str]:
    """The headers that repeat arguments of a tool, where its schema names them (``x-mcp-header``)."""
    return {f"mcp-param-{name.lower()}": encode_header(text) for name, text in _repeated(schema, arguments)}


def _repeated(schema: Any, value: Any) -> Iterator[tuple[str, str]]:
    """Name and text of each header; properties of properties count, those behind other keywords do not."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping) or not isinstance(value, Mapping):
        return
    for name, inner in properties.items():
        argument = value.get(name)
        marked = inner.get("x-mcp-header") if isinstance(inner, Mapping) else None
        if isinstance(marked, str) and _HEADER_NAME.fullmatch(marked):
            if isinstance(argument, bool):
                yield marked, "true" if argument else "false"
            elif isinstance(argument, str | int | float):
                yield marked, str(argument)
        yield from _repeated(inner, argument)


def list_request(client: str, client_version: str) -> Message:
    """The request for the list of tools."""
    return _as_request("tools/list", {"_meta": _client_meta(client, client_version, {})})


def _client_meta(client: str, client_version: str, capabilities: Mapping[str, Any]) -> dict[str, Any]:
    return {
        VERSION_KEY: VERSION,
        f"{_META}clientCapabilities": capabilities,
        f"{_META}clientInfo": {"name": client, "version": client_version},
    }


def _as_request(method: str, params: dict[str, Any]) -> Message:
    return Message("request", method, 1, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})


@dataclass(frozen=True, slots=True)
class Feedback:
    """A message of an agent while it works: progress (``fraction``, ``text``) or a log line.

    ``piece`` is set for progress that is a piece of a text.
    """

    kind: str
    text: str = ""
    fraction: float | None = None
    level: str = "info"
    data: Mapping[str, Any] | None = None
    piece: TextPiece | None = None


def parse_feedback(document: Mapping[str, Any]) -> Feedback | None:
    """The progress or log line in this message; None for any other."""
    if not isinstance(document.get("params"), dict):
        return None
    params = document["params"]
    if document.get("method") == "notifications/progress":
        total, progress, text = params.get("total"), params.get("progress"), params.get("message")
        known = isinstance(total, int | float) and isinstance(progress, int | float) and total > 0
        meta = params.get("_meta")
        return Feedback(
            "progress",
            text if isinstance(text, str) else "",
            progress / total if known else None,
            piece=TextPiece.from_json(meta.get(TEXT_KEY)) if isinstance(meta, dict) else None,
        )
    if document.get("method") == "notifications/message":
        level = _LEVELS.get(str(params.get("level")), "error")
        data = params.get("data")
        if isinstance(data, dict) and isinstance(data.get("message"), str):
            rest = {key: value for key, value in data.items() if key != "message"}
            return Feedback("log", data["message"], level=level, data=rest)
        return Feedback("log", data if isinstance(data, str) else orjson.dumps(data).decode(), level=level)
    return None


def read_answer(reply: Reply, agent: str, skill: Skill) -> Answer:
    """The value and parts of a result; raises RemoteFaultError with the error of the agent."""
    if reply.error is not None:
        raise _read_error(reply.error, agent, skill)
    result = reply.result or {}
    if reply.is_tool_error:
        raise _read_tool_error(result, reply.text or "the tool failed", agent)
    content = result.get("content")
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    warnings = _take_warnings(blocks, reply.meta)
    usage = read_usage(reply.meta.get(USAGE_KEY))
    plain = len(blocks) == 1 and blocks[0].get("type") == "text"
    parts = () if plain else tuple(parse_block(block) for block in blocks)
    if "structuredContent" in result:
        value = _unwrap(result["structuredContent"], skill.output_schema)
        if plain and skill.output_schema is not None and not _says(blocks[0].get("text"), value, result):
            parts = (parse_block(blocks[0]),)
    else:
        value = blocks[0].get("text") if plain else None
    return Answer(value=value, parts=parts, usage=usage, warnings=warnings)


def _says(text: Any, value: Any, result: Mapping[str, Any]) -> bool:
    """Whether a text is only the JSON of the value; else a server tells models the same in other words."""
    if isinstance(value, str) or not isinstance(text, str):
        return bool(text == value)
    try:
        return orjson.loads(text) in (value, result["structuredContent"])
    except orjson.JSONDecodeError:
        return False


def _take_warnings(blocks: list[dict[str, Any]], meta: Mapping[str, Any]) -> tuple[str, ...]:
    """The warnings of a server of our kind; their blocks, which repeat them for models, are removed."""
    listed = meta.get(WARNINGS_KEY)
    warnings = (
        tuple(warning for warning in listed if isinstance(warning, str)) if isinstance(listed, list) else ()
    )
    for warning in reversed(warnings):
        if blocks and blocks[-1].get("text") == f"warning: {warning}":
            blocks.pop()
    return warnings


def is_unknown_tool(reply: Reply) -> bool:
    """Whether the server has no tool of this name, or hides it: nothing was run."""
    message = (reply.error or {}).get("message")
    return isinstance(message, str) and message.startswith("Unknown tool")


def list_questions(reply: Reply) -> Iterable[tuple[str, str, Mapping[str, Any]]]:
    """The questions of a result that asks for input: key, method, parameters."""
    requests = (reply.result or {}).get("inputRequests")
    for key, request in (requests if isinstance(requests, dict) else {}).items():
        if isinstance(request, dict) and isinstance(request.get("method"), str):
            params = request.get("params")
            yield key, request["method"], params if isinstance(params, dict) else {}


def read_state(reply: Reply) -> str | None:
    """The state that names the suspended call, None without one."""
    state = (reply.result or {}).get("requestState")
    return state if isinstance(state, str) else None


def _unwrap(structured: Any, schema: Schema | None) -> Any:
    if is_output_wrapped(schema) and isinstance(structured, dict) and set(structured) == {RESULT_FIELD}:
        return structured[RESULT_FIELD]
    return structured


def _read_tool_error(result: Mapping[str, Any], text: str, agent: str) -> RetinueError:
    """The error with code and message of ``/execute``, if the server is of our kind and gave them."""
    meta = result.get("_meta")
    facts = meta.get(ERROR_KEY) if isinstance(meta, dict) else None
    code: Any = None
    if isinstance(facts, dict):
        facts = dict(facts)
        code, message = facts.pop(CODE_FACT, None), facts.pop(MESSAGE_FACT, text)
        text = message if isinstance(message, str) else text
    return _remote_error(agent, code, text, facts)


def find_lacking(error: Mapping[str, Any]) -> CannotAskError | None:
    """The error of a caller that lacks a capability, None for any other error."""
    data = error.get("data")
    required = data.get("requiredCapabilities") if isinstance(data, dict) else None
    if error.get("code") != _LACKING or not isinstance(required, dict):
        return None
    return CannotAskError(next(iter(required), "capability"))


def _read_error(error: Mapping[str, Any], agent: str, skill: Skill) -> RetinueError:
    code, message, data = error.get("code"), error.get("message"), error.get("data")
    if code == -32602 and isinstance(message, str) and message.startswith("Unknown tool"):
        # as ``/execute`` reports it, so that the card is read again
        return RemoteFaultError(agent, -32601, f"Unknown skill: {skill.id}", {"type": "unknown_skill"})
    if (lacking := find_lacking(error)) is not None:
        return lacking
    return _remote_error(agent, code, message if isinstance(message, str) else "no message given", data)


def _remote_error(agent: str, code: Any, message: str, data: Any) -> RetinueError:
    """The guard's refusal further on, which is relayed unchanged, or an error of the agent."""
    code = code if type(code) is int else -32603
    if isinstance(data, dict):
        # they are of this reply, and not of the error that is passed on
        data = {key: value for key, value in data.items() if key not in (USAGE_KEY, CALLS_USED_KEY)}
    return find_guard_error(code, message, data) or RemoteFaultError(agent, code, message, data)
