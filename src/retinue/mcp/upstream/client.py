"""The MCP client: sends requests to servers over HTTP and reads responses message by message.

`open_response` serves any server; `AgentClient` serves the agents of the mesh, as `rpc.client` does over
``/execute``. The caller's own token stays in this process: an agent gets a token of the mesh, and the rights
of the caller, which can only restrict it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import orjson
from cachetools import LRUCache

from retinue.core.call import Principal, TraceContext
from retinue.core.errors import (
    AgentUnreachableError,
    ExecutionError,
    InvalidParametersError,
    Problem,
    RemoteFaultError,
    TooLargeError,
)
from retinue.core.record import Listing, ListingKey
from retinue.core.usage import Usage, read_usage
from retinue.mcp.codec.messages import Message, Reply, render_message
from retinue.mcp.codec.wire import SESSION_HEADER, Incoming, NegotiatedSession, ResponseReader
from retinue.mesh.guard.trace_guard import OutgoingCall, TraceSigner
from retinue.web.codec.peer_requests import check_not_refused, is_lost, lost, render_rights
from retinue.web.codec.trace import (
    TRACE_KEYS,
    USAGE_KEY,
    find_calls_used,
    render_trace_headers,
    render_trace_meta,
)
from retinue.web.transport import HttpStream, HttpStreamer, ResponseTooLargeError, TransportError

ASK_AGAIN_S = 60.0
"""After this time an agent without an MCP endpoint is asked again whether it has one."""

_MAX_KNOWN = 10_000
_SESSIONLESS = NegotiatedSession()


class NoEndpointError(Exception):
    """The agent has no MCP at its URL; ``fault`` is the error for a caller without an alternative."""

    def __init__(self, fault: RemoteFaultError) -> None:
        super().__init__(fault.message)
        self.fault = fault


class McpResponse(ResponseReader):
    """The response to one request, read from an HTTP stream as it comes."""

    def __init__(self, stream: HttpStream, message: Message | None, sent_headers: Mapping[str, str]) -> None:
        super().__init__(stream.status, stream.headers, message, sent_headers.get(SESSION_HEADER))
        self._stream = stream

    async def next(self) -> list[Incoming]:
        """The messages that came since the last call, the response last; [] at the end.

        Raises TransportError, and TooLargeError for an endless event.
        """
        if not self.is_stream:
            return self.read_body(await self.read()) if self.body is None else []
        while not self.is_over and (chunk := await self.read_some()):
            if messages := self.feed(chunk):
                return messages
        return []

    async def read_some(self) -> bytes:
        """The next bytes of the body, b"" at its end; raises TransportError when it is cut."""
        return await self._stream.read_some()

    async def read(self) -> bytes:
        """The whole body; raises TransportError."""
        return await self._stream.read()

    async def drain(self, timeout_s: float) -> None:
        """Read the rest, so that the connection can be used again."""
        await self._stream.drain(timeout_s)


class AgentResponse(McpResponse):
    """The response of an agent, with the errors of calls to agents."""

    def __init__(
        self, agent: str, url: str, stream: HttpStream, message: Message | None, sent: Mapping[str, str]
    ) -> None:
        super().__init__(stream, message, sent)
        self._agent = agent
        self._url = url

    async def next(self) -> list[Incoming]:
        """As of every response; [] means that it is complete or continued in another stream.

        Raises AgentUnreachableError (cut off), NoEndpointError and RemoteFaultError.
        """
        try:
            message = await super().next()
        except TooLargeError as error:
            raise RemoteFaultError(self._agent, -32603, f"its answer: {error.message}") from error
        if message:
            return message
        if self.ending in ("complete", "continued"):
            return []
        raise self.no_reply()

    def no_reply(self) -> ExecutionError | NoEndpointError:
        """The error of a request whose response never came."""
        if self.is_stream:
            return AgentUnreachableError(self._agent, self._url, "its answer was cut off", sent=True)
        cause = f"agent {self._agent} answered {self.status} with no JSON-RPC reply"
        fault = RemoteFaultError(self._agent, -32603, cause)
        return NoEndpointError(fault) if self.ending == "no_endpoint" else fault

    async def read_some(self) -> bytes:
        """The next bytes of the body, b"" at its end; raises AgentUnreachableError when it is cut."""
        return await self._read(super().read_some())

    async def read(self) -> bytes:
        """The whole body; raises AgentUnreachableError, and RemoteFaultError when it is too large."""
        return await self._read(super().read())

    async def _read(self, reading: Awaitable[bytes]) -> bytes:
        try:
            return await reading
        except ResponseTooLargeError as error:
            raise RemoteFaultError(self._agent, -32603, f"agent {self._agent}: {error.cause}") from error
        except TransportError as error:
            raise AgentUnreachableError(self._agent, self._url, error.cause, sent=True) from error


@asynccontextmanager
async def open_response(
    http: HttpStreamer, method: str, url: str, headers: Mapping[str, str], message: Message | None = None
) -> AsyncIterator[McpResponse]:
    """Send one HTTP request to any MCP server, with ``message`` as its body.

    Leaving before the end of the response cancels it. Raises TransportError.
    """
    body = None if message is None else orjson.dumps(message.document)
    async with http.stream(method, url, headers=headers, body=body) as stream:
        yield McpResponse(stream, message, headers)


class AgentClient:
    """The MCP client of a process for the agents of its mesh.

    ``token_for`` gives the token for an agent of a source at a URL, None for none; ``signer`` signs the
    trace that goes with a message.
    """

    def __init__(
        self,
        http: HttpStreamer,
        token_for: Callable[[str, str], str | None] = lambda source, url: None,
        signer: TraceSigner | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._http = http
        self._token_for = token_for
        self._signer = signer
        self._clock = clock
        self._lacking: LRUCache[ListingKey, tuple[str | None, float]] = LRUCache(_MAX_KNOWN)

    def lacks_endpoint(self, listing: Listing, *, in_session: bool = False) -> bool:
        """Whether the agent is known to have no MCP endpoint at its URL.

        A session with a substitute goes on there, so within one the knowledge does not expire.
        """
        if find_mcp_url(listing) is None:
            return True  # the hub answers in its place, as for an imported server
        known = self._lacking.get(listing.id)
        if known is None or known[0] != listing.record.url:
            return False
        return in_session or self._clock() - known[1] <= ASK_AGAIN_S

    def note_lacking(self, listing: Listing) -> None:
        """Remember that the agent has no MCP endpoint."""
        self._lacking[listing.id] = (listing.record.url, self._clock())

    def post(
        self,
        listing: Listing,
        message: Message,
        trace: TraceContext,
        principal: Principal,
        *,
        signed_for: str,
        headers: Mapping[str, str] | None = None,
    ) -> AgentRequest:
        """Send ``message`` for ``principal`` as part of ``trace``, with the signature of this process.

        ``signed_for`` is the skill that the agent's guard checks the signature against (of a read: what
        its audit calls it); ``headers`` are those of a client whose message is forwarded, else those of
        the message itself. Leaving before the end of the response cancels it. Raises
        AgentUnreachableError (no connection, or a proxy without the agent), NotAuthenticatedError (the
        agent refuses this process's token) and InvalidParametersError (a message that is not JSON).
        """
        if self._signer is not None:
            # a signature counts once: every message needs its own
            trace = self._signer.sign(trace, listing.record.name, signed_for)
        try:
            body = render_message(message, render_trace_meta(trace), drop=TRACE_KEYS)
        except TypeError as error:
            raise InvalidParametersError([Problem("", f"the arguments are not JSON: {error}")]) from error
        own = _SESSIONLESS.headers_of(message) if headers is None else headers
        sent = {**own, **render_trace_headers(trace)}
        request = self.open(listing, "POST", sent, principal, message, body)
        request.trace = trace
        return request

    def record_reply(self, outgoing: OutgoingCall, sent: TraceContext | None, reply: Reply) -> Usage | None:
        """Record what a reply to a message with the trace ``sent`` reports; its usage as it is accepted."""
        usage = read_usage(reply.meta.get(USAGE_KEY))
        return outgoing.record_reply(find_calls_used(reply.meta), usage, sent, self._signer)

    def open(
        self,
        listing: Listing,
        method: str,
        headers: Mapping[str, str],
        principal: Principal,
        message: Message | None = None,
        body: bytes | None = None,
    ) -> AgentRequest:
        """Send one HTTP request as it is, with the token for the agent; raises as `post` does."""
        name, url = listing.record.name, find_mcp_url(listing)
        if url is None:
            raise AgentUnreachableError(name, "(no url)", "its card names no url")
        # the token for this URL: a card may name another host than the one of ``/execute``
        token = self._token_for(listing.source, url)
        if token is not None:
            headers = {**headers, "authorization": f"Bearer {token}", **render_rights(principal)}
        opening = self._http.stream(method, url, headers=headers, body=body)
        return AgentRequest(name, url, opening, message, headers)


class AgentRequest:
    """One HTTP request to an agent, as a context manager. A generator would cost a call 10 µs.

    ``trace`` is the one that was sent, with its signature.
    """

    __slots__ = ("_agent", "_headers", "_message", "_opening", "_url", "trace")

    def __init__(
        self,
        agent: str,
        url: str,
        opening: AbstractAsyncContextManager[HttpStream],
        message: Message | None,
        headers: Mapping[str, str],
    ) -> None:
        self._agent = agent
        self._url = url
        self._opening = opening
        self._message = message
        self._headers = headers
        self.trace: TraceContext | None = None

    async def __aenter__(self) -> AgentResponse:
        try:
            stream = await self._opening.__aenter__()
        except TransportError as error:
            raise AgentUnreachableError(self._agent, self._url, error.cause, sent=error.sent) from error
        response = AgentResponse(self._agent, self._url, stream, self._message, self._headers)
        if stream.status >= 400:
            try:
                check_not_refused(self._agent, self._url, stream.status, stream.headers)
                if is_lost(stream.status) and not response.is_json:
                    raise lost(self._agent, self._url, stream.status)
            except BaseException:
                await self._opening.__aexit__(None, None, None)
                raise
        return response

    async def __aexit__(self, *_: object) -> None:
        await self._opening.__aexit__(None, None, None)


def find_mcp_url(listing: Listing) -> str | None:
    """The MCP url of an agent: its ``mcp`` endpoint, otherwise ``/mcp`` below its url."""
    for endpoint in listing.record.endpoints:
        if endpoint.protocol == "mcp" and endpoint.url:
            return endpoint.url
    base = listing.record.url
    return None if base is None else f"{base.rstrip('/')}/mcp"
