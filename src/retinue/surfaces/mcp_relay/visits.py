"""Who asks what of which agent: what is read of a request before any of it is passed on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from starlette.types import Scope

from retinue.core.call import Principal, TraceContext
from retinue.core.errors import InvalidRequestError, UnknownAgentError
from retinue.core.record import Listing, ListingKey
from retinue.mesh.access import Access, AgentView, is_seen
from retinue.mesh.entry import Candidate, Entry
from retinue.protocols.mcp.messages import Message, is_modern
from retinue.protocols.trace import parse_trace_headers
from retinue.surfaces.mcp_relay.exchange import TRACE_KEYS
from retinue.surfaces.mcp_relay.sessions import Session, Sessions
from retinue.surfaces.mcp_visitors import narrow
from retinue.surfaces.security import Headers, visitor_of

SESSION = "mcp-session-id"
VERSION = "mcp-protocol-version"

_PASSED = frozenset(
    name.encode()
    for name in ("accept", "content-type", SESSION, VERSION, "mcp-method", "mcp-name", "last-event-id")
)
_PASSED_PREFIX = b"mcp-param-"
_TRACE = frozenset(key.encode() for key in TRACE_KEYS)


class Agents(Protocol):
    """Where the door finds agents: the directory."""

    async def ensure_fresh(self) -> None:
        """Read what has not been read yet."""

    def find_named(self, name: str, *, view: AgentView | None = None) -> Entry | None:
        """The agent of a name, within what the caller sees."""

    def find_entry(self, listing_id: ListingKey) -> Entry | None:
        """What is held under an identity."""

    async def open(self, candidate: Candidate) -> Listing | None:
        """The whole listing; None when it is gone. Raises StateError."""


@dataclass(frozen=True, slots=True)
class Visit:
    """Who asks what of which agent."""

    principal: Principal
    headers: Mapping[str, str]
    trace: TraceContext | None
    listing: Listing
    session: Session | None

    @property
    def modern(self) -> bool:
        return is_modern(self.headers.get(VERSION))


class SessionGoneError(Exception):
    """The session is not this principal's, or no longer there; the client is to begin anew."""


class Visits:
    """Makes a visit of each request, or says why there is none."""

    def __init__(self, agents: Agents, access: Access, sessions: Sessions) -> None:
        self._agents = agents
        self._access = access
        self._sessions = sessions

    async def find(self, scope: Scope) -> Listing | None:
        """The agent that the path names, as it is now; one that the caller does not see is not there."""
        await self._agents.ensure_fresh()
        view = self._access.view_of(visitor_of(scope).principal)
        return await self._open(self._agents.find_named(scope["path_params"]["agent"], view=view), view)

    async def make(self, scope: Scope, message: Message | None, listing: Listing | None) -> Visit:
        """The visit to ``listing``, as `find` found it. Raises UnknownAgentError, InvalidRequestError,
        SessionGoneError, and BusyError for a new session too many. A disabled agent is an unknown one, and
        a session of somebody else's is gone."""
        visitor = visitor_of(scope)
        principal = narrow(visitor.principal)
        name = scope["path_params"]["agent"]
        headers = _passed(scope)
        session_id = headers.get(SESSION)
        session = None
        if session_id is not None:
            session = self._sessions.find(listing.record.name if listing else name, session_id, principal)
            if session is None:
                raise SessionGoneError
            view = self._access.view_of(principal)
            listing = await self._open(self._agents.find_entry(session.listing), view)
            if listing is None:
                self._sessions.close(session)
                raise SessionGoneError
        if listing is None or not listing.enabled:
            raise UnknownAgentError(name)
        if message is not None and message.method == "initialize" and session is None:
            self._sessions.check_room()
        trace = parse_trace_headers(_trace_headers(visitor.headers))
        return Visit(principal, headers, trace, listing, session)

    async def _open(self, entry: Entry | None, view: AgentView | None) -> Listing | None:
        """The whole of it; read anew, it may have another name than the one that was looked up."""
        listing = None if entry is None else await self._agents.open(entry)
        return listing if listing is not None and is_seen(view, listing.name) else None


def _passed(scope: Scope) -> dict[str, str]:
    """The headers that mean something to the agent, by lower-case name; raises InvalidRequestError."""
    found: dict[str, str] = {}
    for raw, value in scope["headers"]:
        if raw in _PASSED or raw.startswith(_PASSED_PREFIX):
            name = raw.decode("latin-1")
            if name in found:
                # of two values this hub might believe one and the agent the other
                raise InvalidRequestError(f"the header {name} appears more than once")
            found[name] = value.decode("utf-8", "replace")
    return found


def _trace_headers(headers: Headers) -> dict[str, str]:
    return {key.decode(): headers[key].decode("latin-1") for key in _TRACE if key in headers}
