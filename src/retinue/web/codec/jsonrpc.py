"""Pure codec of JSON-RPC 2.0 (https://www.jsonrpc.org/specification): bytes ↔ requests and replies.

More lenient than the standard in three places, for clients written from seed 001: ``jsonrpc`` and ``params``
may be absent, ``params: null`` counts as absent, and a reply may carry ``error: null`` next to its result
(P-07 … P-09; specification 2, doubts 11 and 12).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from retinue.core.errors import (
    BudgetSpentError,
    CallTooDeepError,
    CircuitOpenError,
    GuardError,
    InvalidRequestError,
    ParseError,
    RetinueError,
    TooLargeError,
)
from retinue.core.json_values import MAX_DEPTH, decode_json, is_nested_deeper, name_shape
from retinue.core.parts import PARTS_KEY
from retinue.core.quick_dataclass import quick_dataclass

RequestId = str | int | float | None

MAX_BATCH = 1000
"""Maximum number of requests in one batch."""

INTERNAL_ERROR = -32603

# Guard errors (specification 5, doubt 4): outside the ranges reserved by JSON-RPC and used by MCP and A2A.
RECURSION_LIMIT = -33007
BUDGET_SPENT = -33008
CIRCUIT_OPEN = -33009

_GUARD_ERRORS: dict[int, type[GuardError]] = {
    RECURSION_LIMIT: CallTooDeepError,
    BUDGET_SPENT: BudgetSpentError,
    CIRCUIT_OPEN: CircuitOpenError,
}

_EXACT_FLOAT = 2**53
"""From here on, an integer that was parsed as a float may have lost digits."""


@quick_dataclass(frozen=True, slots=True)
class Request:
    """One request; ``params`` is an object or a list, ``{}`` when absent."""

    method: str
    params: Any
    id: RequestId
    notification: bool


@dataclass(frozen=True, slots=True)
class Malformed:
    """An invalid request, with the id for the error reply (None when no id could be read)."""

    id: RequestId
    error: RetinueError


@quick_dataclass(frozen=True, slots=True)
class ResultReply:
    """A success reply; ``parts`` is its member of that name beside the result, None when absent."""

    id: RequestId
    value: Any
    parts: Any = None


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error reply; ``data`` is None when absent."""

    id: RequestId
    code: int
    message: str
    data: Any = None


def parse_message(
    body: bytes, *, max_batch: int = MAX_BATCH, max_depth: int = MAX_DEPTH
) -> tuple[bool, list[Request | Malformed]]:
    """Parse one message: whether it is a batch, and its requests in order.

    Raises for the message as a whole: ParseError (not JSON, or nested too deeply), InvalidRequestError (an
    empty batch, or neither object nor list), TooLargeError (too many requests), OutOfMemoryError.
    """
    message = _decode(body, max_depth)
    if isinstance(message, dict):
        _check_depth(body, message, max_depth)
        return False, [_parse_request(message)]
    if not isinstance(message, list):
        raise InvalidRequestError(f"the message is {name_shape(message)}", remedy="send an object or a list")
    if not message:
        raise InvalidRequestError("the batch is empty", remedy="send at least one request")
    if len(message) > max_batch:
        raise TooLargeError("the batch", max_batch, "requests")
    _check_depth(body, message, max_depth)
    return True, [_parse_request(entry) for entry in message]


def parse_response(body: bytes) -> ResultReply | ErrorReply:
    """Parse the reply to one request.

    Raises ParseError (not JSON), InvalidRequestError (JSON, but not a reply) and OutOfMemoryError.
    """
    reply = _decode(body, MAX_DEPTH)
    if not isinstance(reply, dict):
        raise InvalidRequestError(f"the reply is {name_shape(reply)}", remedy="a reply is an object")
    _check_depth(body, reply, MAX_DEPTH)
    reply_id = _readable_id(reply.get("id"))
    error = reply.get("error")
    if error is not None:
        return _parse_fault(reply_id, error)
    if "result" not in reply:
        raise InvalidRequestError("the reply has neither result nor error")
    return ResultReply(reply_id, reply["result"], reply.get(PARTS_KEY))


def find_guard_error(code: int, message: str, data: Any) -> GuardError | None:
    """The guard error in an error reply, to be relayed unchanged; None for other codes."""
    kind = _GUARD_ERRORS.get(code)
    return None if kind is None else kind.relay(message, data)


def render_request(method: str, params: Any, id: RequestId = "orch") -> bytes:  # noqa: A002
    """Render one request with exactly the keys of seed 001, in its order (P-07, P-08)."""
    return orjson.dumps({"jsonrpc": "2.0", "method": method, "params": params, "id": id})


def render_result(id: RequestId, result: Any, parts: Sequence[Any] = ()) -> bytes:  # noqa: A002
    """Render a success reply (P-09), with a member for ``parts`` where there are any.

    Raises TypeError when ``result`` is not a JSON value.
    """
    if parts:
        return orjson.dumps({"jsonrpc": "2.0", "result": result, PARTS_KEY: parts, "id": id})
    return orjson.dumps({"jsonrpc": "2.0", "result": result, "id": id})


def render_error(id: RequestId, code: int, message: str, data: Any = None) -> bytes:  # noqa: A002
    """Render an error reply; ``data`` is omitted when None (P-22 … P-24)."""
    error = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return orjson.dumps({"jsonrpc": "2.0", "error": error, "id": id})


def render_batch(replies: list[bytes]) -> bytes:
    """Render the reply to a batch from its rendered replies."""
    return b"[" + b",".join(replies) + b"]"


def _parse_request(entry: Any) -> Request | Malformed:
    if not isinstance(entry, dict):
        return Malformed(None, InvalidRequestError(f"a request is an object, not {name_shape(entry)}"))
    request_id = entry.get("id")
    if request_id is not None and not _is_id(request_id):
        problem = "id must be a string, an integer or null"
        if type(request_id) is float:
            problem = "id is a number beyond 64 bits; send it as a string"
        return Malformed(None, InvalidRequestError(problem))
    if entry.get("jsonrpc", "2.0") != "2.0":
        return Malformed(request_id, InvalidRequestError('jsonrpc must be "2.0"'))
    method = entry.get("method")
    if not isinstance(method, str):
        problem = (
            f"method must be a string, not {name_shape(method)}" if "method" in entry else "method is missing"
        )
        return Malformed(request_id, InvalidRequestError(problem))
    params = entry.get("params")
    if params is None:
        params = {}
    elif not isinstance(params, dict | list):
        problem = f"params must be an object or a list, not {name_shape(params)}"
        return Malformed(request_id, InvalidRequestError(problem))
    return Request(method, params, request_id, "id" not in entry)


def _parse_fault(reply_id: RequestId, error: Any) -> ErrorReply:
    if not isinstance(error, dict):
        return ErrorReply(reply_id, INTERNAL_ERROR, error if isinstance(error, str) else name_shape(error))
    code = error.get("code")
    message = error.get("message")
    return ErrorReply(
        reply_id,
        code if type(code) is int else INTERNAL_ERROR,
        message if isinstance(message, str) else "the error has no message",
        error.get("data"),
    )


def _is_id(value: Any) -> bool:
    kind = type(value)
    return kind is str or kind is int or (kind is float and abs(value) < _EXACT_FLOAT)


def _readable_id(value: Any) -> RequestId:
    return value if _is_id(value) else None


def _decode(body: bytes, max_depth: int) -> Any:
    try:
        return decode_json(body)
    except orjson.JSONDecodeError as error:
        if "depth limit" in error.msg:
            raise _too_deep(max_depth) from None
        where = f"{error.msg} at line {error.lineno} column {error.colno}"
        raise ParseError(f"not JSON: {where}", remedy="send one JSON object, or a list of them") from None


def _check_depth(body: bytes, message: Any, max_depth: int) -> None:
    if is_nested_deeper(body, message, max_depth):
        raise _too_deep(max_depth)


def _too_deep(max_depth: int) -> ParseError:
    return ParseError(
        f"nested over the limit of {max_depth} levels", remedy=f"nest at most {max_depth} levels"
    )
