"""Pure: recognises the MCP requests that the fast path may answer.

The module reads a ``tools/call`` or ``tools/list`` in the plain form of every client that requests nothing
but the result. A request with anything else (a repeated header, an unknown key, a number that two parsers
read differently) goes to the SDK, so the fast path answers no request that the SDK would refuse.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeGuard

import mcp_types as types
import orjson
from mcp.server.streamable_http import check_accept_headers
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from starlette.requests import Request

from retinue.core.json_values import decode_json, is_nested_deeper

Headers = Mapping[bytes, bytes]
RequestId = str | int

CALL = "tools/call"
LIST = "tools/list"

_KEYS = frozenset({"jsonrpc", "id", "method", "params"})
_KEYS_WITHOUT_PARAMS = _KEYS - {"params"}
_PARAMS = {CALL: frozenset({"name", "arguments", "_meta"}), LIST: frozenset({"_meta"})}
_NONE_TO_KNOW = frozenset({types.LOG_LEVEL_META_KEY, "progress_token"})
_MODERN = frozenset(version.encode() for version in MODERN_PROTOCOL_VERSIONS)
_HANDSHAKE = frozenset((None, *(version.encode() for version in HANDSHAKE_PROTOCOL_VERSIONS)))

SESSION = b"mcp-session-id"
_VERSION = b"mcp-protocol-version"
_ENCODED_NAME = b"=?base64?"

_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * 19
"""orjson reads an integer over 64 bits as a float, the SDK's parsers read it whole."""

_MAX_DEPTH = 64
_MAX_REMEMBERED_BYTES = 2048


@dataclass(slots=True)
class FastRequest:
    """One request in the plain form; ``session`` is None in the sessionless protocol, and only there.

    ``has_channel``: the client listens to progress, or can be asked, as far as the request itself says.
    """

    method: str
    id: RequestId
    name: str
    arguments: Mapping[str, Any] | None
    meta: Mapping[str, Any]
    session: str | None
    has_channel: bool

    @property
    def is_modern(self) -> bool:
        return self.session is None

    @property
    def progress_token(self) -> RequestId | None:
        """The client's name for progress reports; None when it wants none."""
        return self.meta.get("progressToken")


def may_be_fast(headers: Headers, lines: Collection[tuple[bytes, bytes]], max_body_bytes: int) -> bool:
    """Whether the head of a POST leaves it open that its body can be read here.

    ``lines`` are the headers as they came, in which one may stand twice.
    """
    length = headers.get(b"content-length", b"")
    if len(lines) != len(headers) or headers.get(b"content-type") != b"application/json":
        return False
    if not length.isdigit() or int(length) > max_body_bytes or b"transfer-encoding" in headers:
        return False
    accept = headers.get(b"accept", b"")
    if len(accept) > _MAX_REMEMBERED_BYTES or not _accepts_both(accept):
        return False
    if headers.get(_VERSION) not in _MODERN:
        return headers.get(_VERSION) in _HANDSHAKE and SESSION in headers
    if SESSION in headers:
        return False
    for name in headers:  # noqa: SIM110 - a generator costs more than all other checks here
        if name.startswith(b"mcp-param-"):
            return False
    return True


def parse_fast_request(body: bytes, headers: Headers) -> FastRequest | None:
    """The request in ``body``, whose head `may_be_fast` let pass; None for one in any other form."""
    if _LONG_NUMBER in body.translate(_AS_ZEROS):
        return None
    try:
        document = decode_json(body)
    except orjson.JSONDecodeError:
        return None
    session = headers.get(SESSION)
    if type(document) is not dict or document.get("jsonrpc") != "2.0":
        return None
    method, request_id = document.get("method"), document.get("id")
    if method not in (CALL, LIST):
        return None
    # a list without parameters is one of the handshake protocol versions
    is_bare = session is not None and method == LIST and document.keys() == _KEYS_WITHOUT_PARAMS
    params = {} if is_bare else document.get("params")
    if not (is_bare or document.keys() == _KEYS) or not _is_id(request_id):
        return None
    if type(params) is not dict or not params.keys() <= _PARAMS[method]:
        return None
    if is_nested_deeper(body, document, _MAX_DEPTH):
        return None
    meta = params.get("_meta", {})
    if type(meta) is not dict or not _NONE_TO_KNOW.isdisjoint(meta):
        return None
    token = meta.get("progressToken")
    if "progressToken" in meta and not _is_id(token):
        return None
    name, arguments = params.get("name", ""), params.get("arguments")
    if method == CALL and (type(name) is not str or "name" not in params):
        return None
    if "arguments" in params and type(arguments) is not dict:
        return None
    has_channel = token is not None
    if session is None:
        if not _agrees(headers, meta, method, name):
            return None
        has_channel = has_channel or bool(meta[types.CLIENT_CAPABILITIES_META_KEY])
    text = None if session is None else session.decode("latin-1")
    return FastRequest(method, request_id, name, arguments, meta, text, has_channel)


def parse_identity(body: bytes, headers: Headers) -> FastRequest | None:
    """Method, id and session of any request in ``body``, without parameters; None for other messages."""
    try:
        document = decode_json(body)
    except orjson.JSONDecodeError:
        return None
    session = headers.get(SESSION)
    if type(document) is not dict or session is None:
        return None
    method, request_id = document.get("method"), document.get("id")
    if type(method) is not str or not _is_id(request_id):
        return None
    return FastRequest(method, request_id, "", None, {}, session.decode("latin-1"), False)


def _is_id(value: object) -> TypeGuard[RequestId]:
    # not isinstance: a boolean is an integer there
    return type(value) in (str, int)


def _agrees(headers: Headers, meta: Mapping[str, Any], method: str, name: str) -> bool:
    """Whether the headers of 2026-07-28 match the body, and the capabilities can be read."""
    if meta.get(types.PROTOCOL_VERSION_META_KEY) != headers[_VERSION].decode("latin-1"):
        return False
    if headers.get(b"mcp-method", b"").decode("latin-1") != method:
        return False
    if method == CALL:
        named = headers.get(b"mcp-name")
        if named is None or named.startswith(_ENCODED_NAME) or named.decode("latin-1") != name:
            return False
    capabilities = meta.get(types.CLIENT_CAPABILITIES_META_KEY)
    if type(capabilities) is not dict:
        return False
    if not capabilities:
        return True
    spelt = orjson.dumps(capabilities)
    return len(spelt) <= _MAX_REMEMBERED_BYTES and _are_capabilities(spelt)


@lru_cache(maxsize=64)
def _accepts_both(accept: bytes) -> bool:
    """Whether a client takes JSON and event streams, by the SDK's own rule."""
    has_json, has_sse = check_accept_headers(Request({"type": "http", "headers": [(b"accept", accept)]}))
    return has_json and has_sse


@lru_cache(maxsize=256)
def _are_capabilities(spelt: bytes) -> bool:
    """Whether the SDK can read these capabilities of a client."""
    try:
        types.ClientCapabilities.model_validate(orjson.loads(spelt), by_name=False)
    except ValidationError:
        return False
    return True
