"""Pure codec of MCP messages: requests, notifications and responses of JSON-RPC 2.0, one per HTTP request.

A relay keeps unknown keys as they are and writes only keys of ``params._meta``. Source:
https://modelcontextprotocol.io/specification/2025-11-25/basic/transports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, Literal

import orjson

from retinue.core.errors import InvalidRequestError, ParseError
from retinue.core.json_values import MAX_DEPTH, decode_json, is_nested_deeper, name_shape
from retinue.core.quick_dataclass import quick_dataclass

MessageKind = Literal["request", "notification", "response"]
MessageId = str | int | None

HANDSHAKE_VERSIONS = frozenset({"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"})
"""Protocol versions with ``initialize`` and sessions; from 2026-07-28 on requests are independent."""

CANCELLED = -32800
"""The error code of a request that was cancelled (versions with sessions)."""

_STATUSES = {-32700: 400, -32600: 400, -32602: 400, -32601: 404}


@quick_dataclass(frozen=True, slots=True)
class Message:
    """One message; ``method`` is "" for a response, ``id`` None for a notification.

    ``param_headers`` repeat arguments for HTTP, where the schema of a tool asks for it (2026-07-28).
    """

    kind: MessageKind
    method: str
    id: MessageId
    document: dict[str, Any]
    param_headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def params(self) -> dict[str, Any]:
        """The parameters, {} without parameters by name."""
        params = self.document.get("params")
        return params if isinstance(params, dict) else {}

    @property
    def meta(self) -> dict[str, Any]:
        """``params._meta``, {} without one."""
        meta = self.params.get("_meta")
        return meta if isinstance(meta, dict) else {}


@quick_dataclass(frozen=True, slots=True)
class Reply:
    """A response; one of the two is set."""

    result: dict[str, Any] | None
    error: dict[str, Any] | None

    @property
    def needs_input(self) -> bool:
        """Whether the server asks for input before it completes (2026-07-28)."""
        return self.result is not None and self.result.get("resultType") == "input_required"

    @property
    def is_tool_error(self) -> bool:
        """Whether the tool reports a failure."""
        return self.result is not None and self.result.get("isError") is True

    @property
    def meta(self) -> dict[str, Any]:
        """``_meta`` of the result, or the data of the error, which has the same keys; {} without one."""
        meta = (self.result or {}).get("_meta") if self.error is None else self.error.get("data")
        return meta if isinstance(meta, dict) else {}

    @property
    def text(self) -> str:
        """The first text of a tool's result, "" without one."""
        content = (self.result or {}).get("content")
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict) and isinstance(block.get("text"), str):
                return str(block["text"])
        return ""


def is_modern(version: str | None) -> bool:
    """Whether this ``MCP-Protocol-Version`` has neither ``initialize`` nor sessions."""
    return version is not None and version not in HANDSHAKE_VERSIONS


def parse_message(body: bytes) -> Message:
    """Parse one message.

    Raises ParseError (not JSON, nested too deeply), InvalidRequestError and OutOfMemoryError.
    """
    try:
        document = decode_json(body)
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
    """The message with these keys in ``params._meta``, without those in ``drop`` (lower case).

    A response has no parameters and stays as it is, and so does one with parameters by position.
    """
    document = message.document
    params = document.get("params")
    if message.kind == "response" or not (params is None or isinstance(params, dict)):
        return orjson.dumps(document)
    kept = {key: value for key, value in message.meta.items() if key.lower() not in drop}
    return orjson.dumps({**document, "params": {**(params or {}), "_meta": {**kept, **meta}}})


def with_meta(message: Message, meta: Mapping[str, Any]) -> Message:
    """The request or notification with these keys in ``params._meta``; a key that it has already stays."""
    params = {**message.params, "_meta": {**meta, **message.meta}}
    return replace(message, document={**message.document, "params": params})


def name_read(message: Message) -> str:
    """The name of a message other than a call in guard and audit: its method, or its target."""
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


def parse_reply(document: Mapping[str, Any]) -> Reply | None:
    """The response in this message; None for a request, a notification or an invalid message."""
    if "method" in document:
        return None
    result, error = document.get("result"), document.get("error")
    if isinstance(error, dict):
        return Reply(None, error)
    return Reply(result, None) if isinstance(result, dict) else None


def render_error(message_id: MessageId, code: int, text: str, data: Any = None) -> bytes:
    """An error response; ``data`` is left out when None."""
    error: dict[str, Any] = {"code": code, "message": text}
    if data is not None:
        error["data"] = data
    return orjson.dumps({"jsonrpc": "2.0", "id": message_id, "error": error})


def render_tool_error(message_id: MessageId, text: str, *, modern: bool) -> bytes:
    """The result of a failed tool call, as text for the model."""
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": True}
    if modern:
        result["resultType"] = "complete"
    return orjson.dumps({"jsonrpc": "2.0", "id": message_id, "result": result})


def notification(method: str, params: Mapping[str, Any] | None = None) -> Message:
    """A notification as a client sends it; ``params`` is left out when None."""
    document: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        document["params"] = dict(params)
    return Message("notification", method, None, document)


def status_of(code: int, *, modern: bool) -> int:
    """The HTTP status under which a JSON-RPC error travels."""
    return _STATUSES.get(code, 200) if modern else 200


def _read_id(document: dict[str, Any]) -> MessageId:
    found = document.get("id")
    if isinstance(found, str) or (isinstance(found, int) and not isinstance(found, bool)):
        return found
    raise InvalidRequestError("id must be a string or an integer")
