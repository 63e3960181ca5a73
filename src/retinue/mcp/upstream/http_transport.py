"""The transport to an imported MCP server at a url: one POST for each message, and a stream of changes."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any

import orjson

from retinue.core.call import TraceContext
from retinue.core.errors import (
    AgentUnreachableError,
    ExecutionFailedError,
    RemoteFaultError,
    RetinueError,
    TooLargeError,
)
from retinue.core.json_values import MAX_DEPTH, is_nested_deeper
from retinue.mcp.codec.foreign import ForeignServerFacts
from retinue.mcp.codec.messages import Message
from retinue.mcp.codec.wire import SESSION_HEADER, NegotiatedSession
from retinue.mcp.upstream.client import McpResponse, open_response
from retinue.mcp.upstream.flood import FloodMeter
from retinue.mesh.guard.trace_guard import new_trace
from retinue.web.codec.trace import parse_trace_meta, render_trace_headers
from retinue.web.http_client import HttpClient
from retinue.web.transport import ResponseTooLargeError, TransportError

Authorize = Callable[[str | None], Awaitable[str | None]]
"""Gives the ``Authorization`` header of a login, None without one.

Given a header that the server refused ("" for none), it gives another one, or None.
"""

NEEDS_LOGIN = "it asks for a login"
"""How the reason begins of a server that answers with status 401."""

CLOSE_S = 5.0
"""How long a stream of changes may flood until it is closed, to be opened again."""

_CHECK_PATH = (
    ": check the path of its url, often /mcp; a server of the HTTP+SSE transport of 2024 alone, often /sse, "
    "is not supported"
)
_AUTHORIZATION = "authorization"
_CHANGES = "the stream of its changes"
_ANSWER = "the answer to a request"
_PIECE_BYTES = 4096
_END_S = 2.0
"""How long a server may take to end a session."""
_SCOPE = re.compile(r'\bscope="?([\x20\x21\x23-\x5b\x5d-\x7e]{1,1000}?)(?:"|,|$)')


class HttpTransport:
    """Messages to ``url`` with ``headers`` of the person, such as a token; else with those of a login."""

    def __init__(
        self,
        name: str,
        http: HttpClient,
        url: str,
        headers: Mapping[str, str],
        authorize: Authorize | None = None,
        *,
        flood: FloodMeter | None = None,
    ) -> None:
        self.flood = flood or FloodMeter()
        self.trace: TraceContext | None = None
        """The trace of requests without ``_meta`` (GET, DELETE, answers) in a session of one call."""
        self._name = name
        self._http = http
        self._url = url
        self._headers = {key.lower(): value for key, value in headers.items()}
        self._has_token = _AUTHORIZATION in self._headers
        self._authorize = None if self._has_token else authorize
        self._wire = NegotiatedSession()
        self._listens = False

    @property
    def place(self) -> str:
        """The url."""
        return self._url

    @property
    def ends_with_stream(self) -> bool:
        return False

    @property
    def hint(self) -> str:
        return self.flood.reason

    async def open(self) -> None:
        """Nothing to do: the first request connects."""

    async def exchange(self, message: Message) -> AsyncGenerator[Mapping[str, Any], None]:
        try:
            async with self._open("POST", message) as response:
                self._check(response)
                if message.method == "initialize":
                    self._wire.session = response.headers.get(SESSION_HEADER)
                unasked = _CHANGES if message.method == "subscriptions/listen" else _ANSWER
                async with aclosing(self._read(response, unasked)) as documents:
                    async for document in documents:
                        yield document
                if response.ending != "complete":
                    cause = f"status {response.status} without a response"
                    if message.method == "initialize":
                        cause = f"{cause} of MCP{_CHECK_PATH}"
                    raise AgentUnreachableError(self._name, self._url, cause, sent=True)
        except (TooLargeError, ResponseTooLargeError) as error:
            raise RemoteFaultError(self._name, -32603, f"server {self._name}: {error}") from error
        except TransportError as error:
            raise AgentUnreachableError(self._name, self._url, error.cause, sent=error.sent) from error

    async def listen(self) -> AsyncGenerator[Mapping[str, Any], None]:
        """The GET stream of a session; ends at once where the server has none."""
        if not self._listens:
            return
        try:
            async with self._open("GET") as response:
                if not response.is_stream:
                    return
                async with aclosing(self._read(response, _CHANGES)) as documents:
                    async for document in documents:
                        yield document
        except TooLargeError as error:
            cause = f"the stream of its changes: {error.message}"
            raise AgentUnreachableError(self._name, self._url, cause, sent=False) from error
        except TransportError as error:
            raise AgentUnreachableError(self._name, self._url, error.cause, sent=False) from error

    async def _read(self, response: McpResponse, unasked: str) -> AsyncGenerator[Mapping[str, Any], None]:
        """The messages of a response. Any other message counts as unsolicited, and waits in a flood.

        A stream of changes has no reply, so that its bytes count before they are a message.
        """
        if not response.is_stream:
            for incoming in await response.next():
                self._check_readable(incoming.data, incoming.document)
                if incoming.document is not None:
                    yield incoming.document
            if response.reply is None and response.is_json and _is_broken(body := response.body or b""):
                self._check_readable(body, None)
            return
        while not response.is_over and (chunk := await response.read_some()):
            # a little at a time: a chunk may hold tens of thousands of empty events
            for start in range(0, len(chunk), _PIECE_BYTES):
                piece = chunk[start : start + _PIECE_BYTES]
                messages = response.feed(piece)
                for incoming in messages:
                    if unasked == _ANSWER:
                        self._check_readable(incoming.data, incoming.document)
                    if incoming.document is not None:
                        yield incoming.document
                sizes = [len(incoming.raw) for incoming in messages if incoming.reply is None]
                size = len(piece) if unasked == _CHANGES else sum(sizes)
                if (size or sizes) and self.flood.count(unasked, size, pieces=len(sizes)):
                    await self.flood.wait()
                if unasked == _CHANGES and self.flood.lasts_s > CLOSE_S:
                    # what waits in the buffers of both sides would be read for minutes after the flood
                    raise AgentUnreachableError(self._name, self._url, self.flood.reason, sent=False)
                if response.is_over:
                    break

    def _check_readable(self, data: bytes, document: Mapping[str, Any] | None) -> None:
        """Raise RemoteFaultError for a message that is nested too deeply: its request fails at once."""
        if data.startswith(b"{") and (document is None or is_nested_deeper(data, document)):
            problem = f"its reply is no JSON that can be read, or nested over {MAX_DEPTH} levels"
            raise RemoteFaultError(self._name, -32603, f"server {self._name}: {problem}")

    async def send(self, message: Message) -> None:
        try:
            async with self._open("POST", message) as response:
                await response.drain(1.0)
        except TransportError as error:
            raise AgentUnreachableError(self._name, self._url, error.cause, sent=error.sent) from error

    def agree(self, facts: ForeignServerFacts) -> None:
        self._wire.version = facts.version
        self._listens = facts.era == "handshake"

    async def aclose(self) -> None:
        """End the session at the server."""
        self.flood.close()
        if self._wire.session is None:
            return
        # a server that is gone has no session left, and one that does not answer is not waited for
        with suppress(TransportError, TimeoutError):
            async with asyncio.timeout(_END_S), self._open("DELETE") as response:
                await response.drain(1.0)
        self._wire = NegotiatedSession()

    @asynccontextmanager
    async def _open(self, method: str, message: Message | None = None) -> AsyncIterator[McpResponse]:
        """Send a message, and once more with a renewed login if the server refuses it (401)."""
        headers = self._headers | self._wire.headers_of(message)
        trace = (None if message is None else parse_trace_meta(message.meta)) or self.trace
        if trace is None and (message is None or message.kind != "response"):
            trace = new_trace()  # of a stream of changes, or the end of a session that callers share
        if trace is not None:
            headers = render_trace_headers(trace) | headers  # a server may forward these alone
        if self._authorize is not None:
            authorization = await self._authorize(None)
            if authorization is not None:
                headers[_AUTHORIZATION] = authorization
            async with open_response(self._http, method, self._url, headers, message) as response:
                renewed = await self._authorize(authorization or "") if response.status == 401 else None
                if renewed is None:
                    yield response
                    return
            headers[_AUTHORIZATION] = renewed
        async with open_response(self._http, method, self._url, headers, message) as response:
            yield response

    def _check(self, response: McpResponse) -> None:
        if response.is_session_gone:
            self._wire = NegotiatedSession()
            raise AgentUnreachableError(self._name, self._url, "it has ended the session", sent=False)
        if response.status == 401:
            asks = f"{NEEDS_LOGIN}: retinue imports login {self._name}"
            cause = (
                asks if self._authorize is not None else "it refuses the token in the headers of the import"
            )
            raise AgentUnreachableError(self._name, self._url, cause, sent=False)
        if response.status == 403:
            raise self._refused(response.headers.get("www-authenticate", ""))
        if response.status >= 500 and not response.is_json:
            hint = _CHECK_PATH if response.status == HTTPStatus.NOT_IMPLEMENTED else ""
            raise AgentUnreachableError(self._name, self._url, f"status {response.status}{hint}", sent=True)

    def _refused(self, challenge: str) -> RetinueError:
        """The error of status 403. A login with too few rights fails one request, not the session."""
        match = _SCOPE.search(challenge)
        scopes = "" if match is None else match[1]
        if "insufficient_scope" not in challenge:
            cause = "it refuses the credentials"
        elif self._authorize is not None:
            option = f" --scope {shlex.quote(scopes)}" if scopes else ""
            return ExecutionFailedError(
                f"server {self._name} asks for a login with more rights" + (f": {scopes}" if scopes else ""),
                remedy=f"retinue imports login {self._name}{option}",
            )
        else:
            lacking = f"the scope {scopes}" if scopes else "a scope"
            cause = f"the token in its headers lacks {lacking}" if self._has_token else f"it wants {lacking}"
        return AgentUnreachableError(self._name, self._url, cause, sent=False)


def _is_broken(body: bytes) -> bool:
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError:
        return True
    return False
