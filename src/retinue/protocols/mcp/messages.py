"""Pure codec of MCP messages on their way through: what a relay reads of them and writes into them.

Requests, notifications and responses of JSON-RPC 2.0 as both eras of MCP post them, one at a time
(https://modelcontextprotocol.io/specification/2025-11-25/basic/transports). Everything that a relay
does not know travels on as it came; it writes only keys of ``params._meta``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from retinue.core.errors import InvalidRequestError, ParseError
from retinue.protocols.json_values import MAX_DEPTH, is_nested_deeper, name_shape

MessageKind = Literal["request", "notification", "response"]
MessageId = str | int | None

HANDSHAKE_VERSIONS = frozenset({"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"})
"""Revisions with ``initialize`` and sessions; from 2026-07-28 on each request stands for itself."""

CANCELLED = -32800
"""The code under which a server of the handshake era ends a request that was cancelled."""

_STATUSES = {-32700: 400, -32600: 400, -32602: 400, -32601: 404}


@dataclass(frozen=True, slots=True)
class Message:
    """One message; ``method`` is "" for a response, ``id`` None for a notification."""

    kind: MessageKind
    method: str
    id: MessageId
    document: dict[str, Any]

    @property
    def params(self) -> dict[str, Any]:
        """The parameters, {} where there are none by name."""
        params = self.document.get("params")
        return params if isinstance(params, dict) else {}

    @property
    def meta(self) -> dict[str, Any]:
        """``params._meta``, {} where there is none."""
        meta = self.params.get("_meta")
        return meta if isinstance(meta, dict) else {}


@dataclass(frozen=True, slots=True)
class Reply:
    """A response as far as a relay must know it: one of the two is set."""

    result: dict[str, Any] | None
    error: dict[str, Any] | None

    @property
    def needs_input(self) -> bool:
        """Whether the server asks something back before it answers (2026-07-28)."""
        return self.result is not None and self.result.get("resultType") == "input_required"

    @property
    def is_tool_error(self) -> bool:
        """Whether a tool says that it failed."""
        return self.result is not None and self.result.get("isError") is True

    @property
    def meta(self) -> dict[str, Any]:
        """``_meta`` of the result, {} where there is none."""
        meta = (self.result or {}).get("_meta")
        return meta if isinstance(meta, dict) else {}

    @property
    def text(self) -> str:
        """The first text of a tool's result, "" when it has none."""
        content = (self.result or {}).get("content")
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict) and isinstance(block.get("text"), str):
                return str(block["text"])
        return ""


def is_modern(version: str | None) -> bool:
    """Whether this ``MCP-Protocol-Version`` means that there is neither handshake nor session."""
    return version is not None and version not in HANDSHAKE_VERSIONS


def parse_message(body: bytes) -> Message:
    """Read one message; raises ParseError (no JSON, nested too deeply) and InvalidRequestError."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ParseError(f"not JSON: {error.msg}", remedy="send one JSON-RPC message") from None
    if not isinstance(document, dict):
        raise InvalidRequestError(
            f"the message is {name_shape(document)}", remedy="send one JSON-RPC message; MCP has no batches"
        )
    if is_nested_deeper(body, document):
        raise ParseError(f"nested over the limit of {MAX_DEPTH} levels", remedy=f"nest at most {MAX_DEPTH}")
    if document.get("jsonrpc") != "2.0":
        raise InvalidRequestError('jsonrpc must be "2.0"')
    method = document.get("method")
    if method is None and ("result" in document or "error" in document):
        return Message("response", "", _read_id(document), document)
    if not isinstance(method, str):
        raise InvalidRequestError("method must be a string")
    if "id" not in document:
        return Message("notification", method, None, document)
    return Message("request", method, _read_id(document), document)


def render_message(message: Message, meta: Mapping[str, Any], *, drop: frozenset[str] = frozenset()) -> bytes:
    """The message with these keys in ``params._meta``, and without those that ``drop`` names (lower case).

    A response has no parameters and stays as it is, and so does one with parameters by position.
    """
    document = message.document
    params = document.get("params")
    if message.kind == "response" or not (params is None or isinstance(params, dict)):
        return orjson.dumps(document)
    kept = {key: value for key, value in message.meta.items() if key.lower() not in drop}
    return orjson.dumps({**document, "params": {**(params or {}), "_meta": {**kept, **meta}}})


def name_read(message: Message) -> str:
    """What an agent's own guard and audit call a message that is no call: its method, or what is read."""
    params = message.params
    if message.method == "resources/read":
        return f"resource {params.get('uri')}"
    if message.method == "prompts/get":
        return f"prompt {params.get('name')}"
    if message.method == "completion/complete":
        ref = params.get("ref")
        named = (ref.get("name") or ref.get("uri")) if isinstance(ref, dict) else None
        return f"completion {named}"
    return message.method


def read_reply(data: bytes) -> Reply | None:
    """The response in these bytes; None for a request, a notification, or what is no message."""
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(document, dict) or "method" in document:
        return None
    result, error = document.get("result"), document.get("error")
    if isinstance(error, dict):
        return Reply(None, error)
    return Reply(result, None) if isinstance(result, dict) else None


def read_question(data: bytes) -> str | int | None:
    """The id of the server's own request in these bytes; None for everything else."""
    if b'"id"' not in data or b'"method"' not in data:
        return None
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    found = document.get("id") if isinstance(document, dict) and "method" in document else None
    return found if isinstance(found, str | int) else None


def render_error(message_id: MessageId, code: int, text: str, data: Any = None) -> bytes:
    """A response that failed; ``data`` is left out when None."""
    error: dict[str, Any] = {"code": code, "message": text}
    if data is not None:
        error["data"] = data
    return orjson.dumps({"jsonrpc": "2.0", "id": message_id, "error": error})


def render_tool_error(message_id: MessageId, text: str, *, modern: bool) -> bytes:
    """The result of a tool call that failed in a way that a model can act on."""
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": True}
    if modern:
        result["resultType"] = "complete"
    return orjson.dumps({"jsonrpc": "2.0", "id": message_id, "result": result})


def render_cancelled(request_id: MessageId, reason: str, meta: Mapping[str, Any]) -> bytes:
    """The notification that gives a request up (handshake era)."""
    params = {"requestId": request_id, "reason": reason, "_meta": dict(meta)}
    return orjson.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})


def status_of(code: int, *, modern: bool) -> int:
    """The HTTP status under which a JSON-RPC error travels."""
    return _STATUSES.get(code, 200) if modern else 200


def _read_id(document: dict[str, Any]) -> MessageId:
    found = document.get("id")
    if isinstance(found, str) or (isinstance(found, int) and not isinstance(found, bool)):
        return found
    raise InvalidRequestError("id must be a string or an integer")
