"""MCP messages to agents of the mesh: one POST, GET or DELETE to an agent's ``/mcp``, read as it comes.

What `drivers.peers` is for ``/execute``. The caller's own authorization stays here: the agent is told
who asks by the token of its source, and by the rights of the caller beside it, which can only be less.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from retinue.core.call import Principal, TraceContext
from retinue.core.errors import AgentUnreachableError, ExecutionError, RemoteFaultError
from retinue.core.record import Listing
from retinue.drivers.http import HttpClient, HttpStream, ResponseTooLargeError, TransportError
from retinue.drivers.peer_faults import check_not_refused, is_lost, lost
from retinue.mesh.guards import Signer
from retinue.protocols.rights import render_rights
from retinue.protocols.trace import render_trace_headers


class Upstream:
    """An agent's answer: its status, its headers by lower-case name, and its body as it comes."""

    def __init__(self, agent: str, url: str, stream: HttpStream) -> None:
        self._agent = agent
        self._url = url
        self._stream = stream
        self.status = stream.status
        self.headers = stream.headers

    async def read_some(self) -> bytes:
        """The next piece of the body, b"" at its end; raises AgentUnreachableError when it is cut."""
        try:
            return await self._stream.read_some()
        except TransportError as error:
            raise self._tell(error) from error

    async def read(self) -> bytes:
        """The whole body; raises AgentUnreachableError, and RemoteFaultError when it is too large."""
        try:
            return await self._stream.read()
        except TransportError as error:
            raise self._tell(error) from error

    async def drain(self, timeout_s: float) -> None:
        """Read to the end of a body that is over, for the sake of the connection."""
        await self._stream.drain(timeout_s)

    def _tell(self, error: TransportError) -> ExecutionError:
        if isinstance(error, ResponseTooLargeError):
            return RemoteFaultError(self._agent, -32603, f"agent {self._agent}: {error.cause}")
        return AgentUnreachableError(self._agent, self._url, error.cause, sent=True)


class McpPeers:
    """Speaks MCP to agents elsewhere.

    ``token_for`` gives what to send to an agent of a source at a url, None for nothing; ``signer`` vouches
    for the trace that goes with a message.
    """

    def __init__(
        self,
        http: HttpClient,
        token_for: Callable[[str, str], str | None] = lambda source, url: None,
        signer: Signer | None = None,
    ) -> None:
        self._http = http
        self._token_for = token_for
        self._signer = signer

    def sign(self, trace: TraceContext, listing: Listing, skill: str) -> TraceContext:
        """The trace as it goes to this agent for ``skill`` (of a read: as its audit row names it)."""
        return trace if self._signer is None else self._signer.sign(trace, listing.record.name, skill)

    @asynccontextmanager
    async def open(
        self,
        listing: Listing,
        method: str,
        headers: Mapping[str, str],
        principal: Principal,
        *,
        trace: TraceContext | None = None,
        body: bytes | None = None,
    ) -> AsyncIterator[Upstream]:
        """Send one HTTP request for ``principal``; leaving before the end of the answer gives it up.

        Raises AgentUnreachableError (nobody there, or a balancer that has lost the agent) and
        NotAuthenticatedError (the agent does not take this process's token).
        """
        name, url = listing.record.name, find_mcp_url(listing)
        if url is None:
            raise AgentUnreachableError(name, "(no url)", "its card names no url")
        sent = dict(headers)
        if trace is not None:
            sent.update(render_trace_headers(trace))
        # for the place that it goes to, which a card may have named apart
        token = self._token_for(listing.source, url)
        if token is not None:
            sent["authorization"] = f"Bearer {token}"
            sent |= render_rights(principal)
        try:
            async with self._http.stream(method, url, headers=sent, body=body) as stream:
                check_not_refused(name, stream.status)
                if is_lost(stream.status) and not _is_message(stream):
                    raise lost(name, url, stream.status)
                yield Upstream(name, url, stream)
        except TransportError as error:
            raise AgentUnreachableError(name, url, error.cause, sent=error.sent) from error


def find_mcp_url(listing: Listing) -> str | None:
    """Where the agent speaks MCP: its own endpoint of that name, else ``/mcp`` beside ``/execute``."""
    named = next((e.url for e in listing.record.endpoints if e.protocol == "mcp"), None)
    base = listing.record.url
    return named or (None if base is None else f"{base.rstrip('/')}/mcp")


def _is_message(stream: HttpStream) -> bool:
    return stream.headers.get("content-type", "").startswith("application/json")
