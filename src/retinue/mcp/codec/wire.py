"""Pure: the client side of MCP over HTTP, in both protocol eras.

`NegotiatedSession` builds the headers of requests and keeps protocol version and session. `ResponseReader`
splits the response to one request into messages. Neither does I/O, so all MCP clients of Retinue use both.

Sources: https://modelcontextprotocol.io/specification/2025-11-25/basic/transports (``initialize`` and
sessions) and https://modelcontextprotocol.io/specification/2026-07-28 (each request stands alone).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from retinue.core.quick_dataclass import quick_dataclass
from retinue.mcp.codec.messages import Message, Reply, is_modern, parse_reply
from retinue.web.codec.sse import EventParser

SESSION_HEADER = "mcp-session-id"
VERSION_HEADER = "mcp-protocol-version"
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
"""In ``_meta`` of a message: its protocol version, from 2026-07-28 on."""

JSON = "application/json"
EVENT_STREAM = "text/event-stream"

_NO_ENDPOINT = frozenset({404, 405, 501})
_NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}

Ending = Literal["complete", "continued", "cut", "not_jsonrpc", "no_endpoint"]
"""How a response ended. ``complete``: nothing is missing. ``continued``: the client resumes the stream
with the last event id. ``cut``: a stream without its response. ``not_jsonrpc``: a body that is no
response. ``no_endpoint``: the server does not speak MCP at this URL."""


@dataclass(slots=True)
class NegotiatedSession:
    """The agreement of a client with one server in ``initialize``: protocol version and session.

    Messages of 2026-07-28 name their version themselves and use neither.
    """

    version: str | None = None
    session: str | None = None

    def headers_of(self, message: Message | None) -> dict[str, str]:
        """Headers of a POST with ``message``; None is a GET or DELETE in the session."""
        headers = {"accept": f"{JSON}, {EVENT_STREAM}", "content-type": JSON}
        if message is None:
            headers["accept"] = EVENT_STREAM
        else:
            version = message.meta.get(VERSION_KEY)
            if isinstance(version, str) and is_modern(version):
                headers |= {VERSION_HEADER: version, "mcp-method": message.method}
                name = message.params.get(_NAMED_BY.get(message.method, ""))
                if isinstance(name, str):
                    headers["mcp-name"] = encode_header(name)
                return {**headers, **message.param_headers}
            if message.method == "initialize":
                return headers
        if self.session is not None:
            headers[SESSION_HEADER] = self.session
        if self.version is not None:
            headers[VERSION_HEADER] = self.version
        return headers


@quick_dataclass(frozen=True, slots=True)
class Incoming:
    """One message of a server: ``raw`` is the event or body as it came, ``data`` the JSON text in it.

    ``document`` is None where the event holds no JSON object (a comment, or the first id of a stream).
    ``reply`` is set for a response.
    """

    raw: bytes
    data: bytes
    event_id: str | None
    document: dict[str, Any] | None
    reply: Reply | None

    @property
    def question_id(self) -> str | int | None:
        """The id of a request of the server's own; None for every other message."""
        if self.document is None or "method" not in self.document:
            return None
        request_id = self.document.get("id")
        return request_id if isinstance(request_id, str | int) else None


class ResponseReader:
    """Reads the response to ``message``; None is a GET, whose stream does not end with a response.

    ``session`` is the one of the request: in a session, 404 means the session and not the endpoint.
    """

    def __init__(
        self, status: int, headers: Mapping[str, str], message: Message | None, session: str | None = None
    ) -> None:
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        self.status = status
        self.headers = headers
        self.session = session
        self.is_stream = media_type == EVENT_STREAM
        self.is_json = media_type == JSON
        self.is_session_gone = session is not None and status == 404
        self.reply: Reply | None = None
        """The response, once it was read."""
        self.body: bytes | None = None
        """The whole body of a response that is no stream, once it was read."""
        self.is_resumable = False
        """Whether an event had an id, with which the client can resume the stream."""
        self._message = message
        self._events = EventParser() if self.is_stream else None

    @property
    def is_over(self) -> bool:
        """Whether what follows belongs to no message."""
        return self.reply is not None and self._message is not None

    def feed(self, chunk: bytes) -> list[Incoming]:
        """The messages that ``chunk`` of a stream completes, up to the response. Raises TooLargeError."""
        assert self._events is not None, "a body that is no stream is read whole"
        messages: list[Incoming] = []
        for event in self._events.feed(chunk):
            incoming = _parse_incoming(event.raw, event.data, event.id)
            messages.append(incoming)
            if incoming.reply is not None:
                self.reply = incoming.reply
                if self.is_over:
                    break
            self.is_resumable = self.is_resumable or event.id is not None
        return messages

    def read_body(self, body: bytes) -> list[Incoming]:
        """The response in the body of an answer that is no stream; [] where there is none."""
        self.body = body
        if not self.is_json or not body:
            return []
        incoming = _parse_incoming(body, body, None)
        self.reply = incoming.reply
        return [] if incoming.reply is None else [incoming]

    @property
    def ending(self) -> Ending:
        """How the response ended, if it ends here."""
        if self.reply is not None:
            return "complete"
        if self._events is not None:
            return "continued" if self.is_resumable and self._events.is_between_events else "cut"
        is_request = self._message is not None and self._message.kind == "request"
        if self.status in _NO_ENDPOINT and self.session is None and (self.body or is_request):
            return "no_endpoint"
        if self.body or (is_request and self.status < 400):
            return "not_jsonrpc"
        return "complete"


def encode_header(text: str) -> str:
    """A name as a header carries it: base64 in the form of the specification where it is not plain."""
    plain = text.isascii() and text.isprintable() and text == text.strip()
    if plain and not (text.startswith("=?base64?") and text.endswith("?=")):
        return text
    return f"=?base64?{b64encode(text.encode()).decode()}?="


def _parse_incoming(raw: bytes, data: bytes, event_id: str | None) -> Incoming:
    document: Any = None
    if data:
        try:
            document = orjson.loads(data)
        except orjson.JSONDecodeError:
            document = None
    if not isinstance(document, dict):
        return Incoming(raw, data, event_id, None, None)
    return Incoming(raw, data, event_id, document, parse_reply(document))
