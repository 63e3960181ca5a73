"""Answers ``tools/call`` and ``tools/list`` without the SDK's layers, in all protocol versions.

The SDK starts several tasks and streams for each request, so that a server may report and ask while it works;
that is four fifths of the cost of a call. The fast path takes a request only if its result is all the client
can receive: the request has the plain form (`fast_requests`), and the skill uses no channel
(``Skill.channel``), or the client neither listens nor answers questions. Every other request goes to the SDK,
with its body replayed. Both ways give the same bytes, and the same dispatch path runs the skill.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

import structlog
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    INTERNAL_ERROR,
    PROTOCOL_VERSION_META_KEY,
    ErrorData,
)
from pydantic_core import to_json, to_jsonable_python
from starlette.types import Message, Receive, Scope, Send

from retinue.approvals.records import SCOPE as APPROVER_SCOPE
from retinue.core.call import Principal, TraceContext
from retinue.core.errors import RetinueError
from retinue.mcp.codec.content import complete_result
from retinue.mcp.codec.tool_calls import WHOLE_KEY
from retinue.mcp.server.change_notifier import RunningCall, id_in_use
from retinue.mcp.server.channel import DeafChannel, McpCaller
from retinue.mcp.server.fast.fast_requests import (
    LIST,
    SESSION,
    FastRequest,
    may_be_fast,
    parse_fast_request,
    parse_identity,
)
from retinue.mcp.server.offer import McpOptions, Offer, ToolCatalog, ToolEntry
from retinue.mcp.server.sdk_internals import OpenSession, Sessions
from retinue.mcp.server.tools import PLACEHOLDER, PLACEHOLDER_BYTES, ToolHandlers, ToolRequest
from retinue.mesh.dispatch import Dispatcher
from retinue.web.codec.merged_traces import parse_traces
from retinue.web.codec.trace import parse_raw_trace_headers
from retinue.web.disconnect import CancelOnDisconnect, replay
from retinue.web.error_table import mcp_read_fault
from retinue.web.security import Headers, RequestIdentity

REQUEST_CANCELLED = ErrorData(code=-32800, message="Request cancelled")
"""The SDK's answer to a cancelled request of a session."""

_TICK = 1e-6
_MODERN_STREAM = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
]
_DEAF = DeafChannel(is_sessionless=False)
_DEAF_SESSIONLESS = DeafChannel(is_sessionless=True)
_NOTHING_HELD = nullcontext()
_NO_TRACE = TraceContext(id="")
_WITHOUT_TRACE = frozenset(
    {PROTOCOL_VERSION_META_KEY, CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, "progressToken"}
)
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_log = structlog.get_logger(__name__)


_Accepted = tuple[FastRequest, ToolCatalog, ToolEntry | None, OpenSession | None]
"""The request, the caller's tools, the called one (None for a list), and the session."""


class FastPath:
    """The fast path of one server, in front of the SDK.

    ``server_info`` is the server's name and version as results of 2026-07-28 carry it.
    """

    def __init__(
        self,
        offer: Offer,
        tools: ToolHandlers,
        sessions: Sessions,
        server_info: dict[str, Any],
        options: McpOptions,
    ) -> None:
        self._offer = offer
        self._tools = tools
        self._sessions = sessions
        self._server_info = server_info
        self._options = options

    async def answer(
        self, scope: Scope, receive: Receive, send: Send, visitor: RequestIdentity, principal: Principal
    ) -> Receive | None:
        """Answer the request and return None; or return the ``receive`` with which the SDK answers it."""
        headers = visitor.headers
        if scope["method"] != "POST":
            return receive
        is_fast = may_be_fast(headers, scope["headers"], self._options.max_body_bytes)
        if not is_fast and SESSION not in headers:
            return receive
        message = await receive()
        found = self._accept(message, headers, principal) if is_fast else None
        if found is None:
            reused = self._find_reused(message, headers, principal)
            if reused is None:
                return replay(message, receive)
            with FastAnswer(receive, send, reused, self._options.heartbeat_s) as answer:
                await answer.fail(id_in_use(reused.id).error)
            return None
        request, catalog, entry, session = found
        if session is not None:
            self._sessions.attend(principal)
        held = _NOTHING_HELD if session is None else session.hold
        with held, FastAnswer(receive, send, request, self._options.heartbeat_s) as answer:
            if entry is None:
                await self._list(catalog, answer, request)
            else:
                caller = McpCaller(principal, "mcp", _trace_of(visitor, request), request.session)
                await self._call(entry, answer, request, caller, session)
        return None

    def _accept(self, message: Message, headers: Headers, principal: Principal) -> _Accepted | None:
        """The facts for an answer to the request with the body in ``message``; None leaves it to the SDK."""
        if message["type"] != "http.request" or message.get("more_body", False):
            return None
        request = parse_fast_request(message.get("body", b""), headers)
        if request is None:
            return None
        session: OpenSession | None = None
        if request.session is not None:
            session = self._sessions.find(request.session, request.id, principal)
            if session is None:
                return None
        try:
            catalog = self._offer.tools(principal, request.session)
            entry = None if request.method == LIST else self._find_plain(catalog, request, session, principal)
        except RetinueError:
            return None
        is_open = entry is not None or request.method == LIST
        return (request, catalog, entry, session) if is_open else None

    def _find_reused(self, message: Message, headers: Headers, principal: Principal) -> FastRequest | None:
        """The request, if an earlier one of its session with the same id is not answered yet.

        The SDK would drop the response of the earlier one.
        """
        if message["type"] != "http.request" or message.get("more_body", False):
            return None
        request = parse_identity(message.get("body", b""), headers)
        if request is None or request.session is None:
            return None
        is_running = self._sessions.has_request(request.session, request.id, principal)
        return request if is_running else None

    def _find_plain(
        self, catalog: ToolCatalog, request: FastRequest, session: OpenSession | None, principal: Principal
    ) -> ToolEntry | None:
        """The tool, if nothing but its result can reach the client."""
        entry = catalog.find(request.name)
        if entry is None or (request.is_modern and catalog.has_header_arguments(request.name)):
            return None
        # An agent sends parts, such as images, over MCP only, and the way to it is chosen by what the client
        # listens to; a skill with an output schema has none.
        is_elsewhere = entry.agent is not None and entry.skill.output_schema is None
        # a policy may ask the person behind a client that may approve, or read whether there is one
        calls = self._tools.calls
        reads_channel = isinstance(calls, Dispatcher) and calls.reads_channel
        is_asked = APPROVER_SCOPE in principal.scopes or reads_channel
        if (entry.skill.channel or is_elsewhere or is_asked) and self._has_channel(request, session):
            return None
        return entry

    def _has_channel(self, request: FastRequest, session: OpenSession | None) -> bool:
        """Whether the client of this request listens to anything but the result, or can be asked."""
        if request.has_channel or session is None:
            return request.has_channel
        return self._offer.facts.logs or session.is_askable

    async def _list(self, catalog: ToolCatalog, answer: FastAnswer, request: FastRequest) -> None:
        try:
            listed = catalog.listed
        except RetinueError as error:
            await answer.fail(MCPError(*mcp_read_fault(error)).error)
            return
        result = self._shape({"tools": PLACEHOLDER}, request, cacheable=True)
        await answer.finish(result, filled=(PLACEHOLDER_BYTES, listed))

    async def _call(
        self,
        entry: ToolEntry,
        answer: FastAnswer,
        request: FastRequest,
        caller: McpCaller,
        session: OpenSession | None,
    ) -> None:
        asked = ToolRequest(
            request.name,
            request.arguments,
            is_whole=WHOLE_KEY in request.meta,
            is_modern=request.is_modern,
        )
        running: RunningCall | None = None
        if session is not None:
            running = session.calls[coerce_request_id(request.id)] = RunningCall()
        result: dict[str, Any] = {}
        error: ErrorData | None = None
        try:
            deaf = _DEAF_SESSIONLESS if request.is_modern else _DEAF
            result = await self._tools.run(asked, entry, caller, deaf if entry.skill.channel else None)
        except MCPError as failure:
            error = failure.error
        except asyncio.CancelledError:
            if running is None or not running.ended_by:
                raise
        except Exception:  # noqa: BLE001 - our own mistake: its text belongs in the log, not on the wire
            _log.exception("call failed", tool=request.name)
            error = ErrorData(code=INTERNAL_ERROR, message="Internal server error")
        finally:
            if session is not None:
                session.calls.pop(coerce_request_id(request.id), None)
        if running is not None and running.ended_by:
            running.task.uncancel()
            await (
                answer.fail(REQUEST_CANCELLED)
                if running.ended_by == "client"
                else answer.end_without_result()
            )
        elif error is not None:
            await answer.fail(error)
        else:
            await answer.finish(self._shape(result, request))

    def _shape(
        self, result: dict[str, Any], request: FastRequest, *, cacheable: bool = False
    ) -> dict[str, Any]:
        if not request.is_modern:
            return result
        return complete_result(result, self._server_info, cacheable=cacheable)


def _trace_of(visitor: RequestIdentity, request: FastRequest) -> TraceContext:
    if _WITHOUT_TRACE.issuperset(request.meta):
        return parse_raw_trace_headers(visitor.headers) or _NO_TRACE
    return parse_traces(visitor.headers, request.meta) or _NO_TRACE


class FastAnswer(CancelOnDisconnect):
    """Writes one response, within a ``with`` block that ends early when the client disconnects.

    A quick result leaves with the head of its event stream. After `WATCH_AFTER_S` the head of a session's
    stream is sent, and the alarm keeps the stream open from then on.
    """

    __slots__ = (
        "_beats",
        "_began",
        "_heartbeat_s",
        "_is_over",
        "_is_streaming",
        "_request",
        "_send",
        "_writing",
    )

    def __init__(self, receive: Receive, send: Send, request: FastRequest, heartbeat_s: float) -> None:
        super().__init__(receive)
        self._heartbeat_s = heartbeat_s
        self._send = send
        self._request = request
        self._began = self._loop.time()
        self._beats = 0
        self._is_streaming = False
        self._is_over = False
        self._writing: asyncio.Task[None] | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> bool:
        self._is_over = True
        if self._writing is not None:
            self._writing.cancel()
        return super().__exit__(kind, error, at)

    def ring(self) -> None:
        if self._watcher is None:
            super().ring()
            if self._request.is_modern:
                self._wait_for_beat()
                return
        self._writing = self._loop.create_task(self._keep_open())

    async def finish(self, result: dict[str, Any], *, filled: tuple[bytes, bytes] | None = None) -> None:
        """End with the result; ``filled`` replaces a placeholder in its JSON by ready bytes."""
        body = self._render({"jsonrpc": "2.0", "id": self._request.id, "result": result})
        await self._end(body if filled is None else body.replace(*filled), 200)

    async def fail(self, error: ErrorData) -> None:
        """End with a JSON-RPC error."""
        if self._request.is_modern:
            fault = error.model_dump(mode="json", by_alias=True, exclude_none=True)
        else:
            fault = error.model_dump(by_alias=True, exclude_unset=True)
        body = self._render({"jsonrpc": "2.0", "id": self._request.id, "error": fault})
        await self._end(body, ERROR_CODE_HTTP_STATUS.get(error.code, 200))

    async def end_without_result(self) -> None:
        """End the stream of a session that is over; the client learns so with its next request."""
        await self._settle()
        if not self._is_streaming:
            await self._open()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _end(self, body: bytes, status: int) -> None:
        await self._settle()
        if self._request.is_modern and not self._is_streaming:
            headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._send({"type": "http.response.body", "body": body})
            return
        if not self._is_streaming:
            await self._open()
        await self._send({"type": "http.response.body", "body": _as_event(body), "more_body": False})

    async def _settle(self) -> None:
        """Stop the alarm, and wait until it has written."""
        self._is_over = True
        self.unset()
        if self._writing is not None:
            await self._writing

    async def _open(self) -> None:
        self._is_streaming = True
        headers = _MODERN_STREAM
        if self._request.session is not None:
            headers = [
                (b"cache-control", b"no-cache, no-transform"),
                (b"connection", b"keep-alive"),
                (b"content-type", b"text/event-stream"),
                (b"mcp-session-id", self._request.session.encode("latin-1")),
                (b"x-accel-buffering", b"no"),
            ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _keep_open(self) -> None:
        is_head = not self._is_streaming
        if is_head:
            await self._open()
        if self._request.is_modern or not is_head:
            self._beats += 1
            await self._send({"type": "http.response.body", "body": self._render_beat(), "more_body": True})
        self._wait_for_beat()

    def _wait_for_beat(self) -> None:
        if not self._is_over:
            self.set(max(self._began + (self._beats + 1) * self._heartbeat_s, self._loop.time()))

    def _render_beat(self) -> bytes:
        token = self._request.progress_token
        if token is not None:
            params = {"progressToken": token, "progress": self._beats * _TICK, "message": "still running"}
            report = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
            return _as_event(self._render(report))
        comment = "ping" if self._request.is_modern else f"ping - {datetime.now(UTC)}"
        return f": {comment}\r\n\r\n".encode()

    def _render(self, document: Mapping[str, Any]) -> bytes:
        """The JSON text as the SDK spells it: ASCII in 2026-07-28, else UTF-8."""
        if not self._request.is_modern:
            return to_json(document, inf_nan_mode="null")
        return render_ascii(document)


def render_ascii(document: Mapping[str, Any]) -> bytes:
    """The JSON text of ``json.dumps`` without spaces; infinite numbers and NaN become null."""
    try:
        return _encode(document).encode()
    except (TypeError, ValueError):
        return _encode(to_jsonable_python(document, inf_nan_mode="null")).encode()


def _as_event(body: bytes) -> bytes:
    return b"event: message\r\ndata: " + body + b"\r\n\r\n"
