"""Who asks what of which agent: what is read of a request before any of it is passed on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from starlette.types import Scope

from retinue.core.call import Principal, TraceContext
from retinue.core.errors import InvalidRequestError, UnknownAgentError
from retinue.core.record import Listing, ListingKey
from retinue.protocols.mcp.messages import Message, is_modern
from retinue.protocols.trace import parse_trace_headers
from retinue.surfaces.mcp_relay.exchange import TRACE_KEYS
from retinue.surfaces.mcp_relay.sessions import Session, Sessions
from retinue.surfaces.security import Headers, visitor_of

SESSION = "mcp-session-id"
VERSION = "mcp-protocol-version"

_PASSED = frozenset(
    name.encode()
    for name in ("accept", "content-type", SESSION, VERSION, "mcp-method", "mcp-name", "last-event-id")
)
_PASSED_PREFIX = b"mcp-param-"
_TRACE = frozenset(key.encode() for key in TRACE_KEYS)
_MCP_VIEW = frozenset({"exposed"})


class Agents(Protocol):
    """Where the door finds agents: the directory."""

    async def ensure_fresh(self) -> None:
        """Read what has not been read yet."""

    def find(self, name: str) -> Listing | None:
        """The agent of a name."""

    def find_listing(self, listing_id: ListingKey) -> Listing | None:
        """What is held under an identity."""


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

    def __init__(self, agents: Agents, sessions: Sessions) -> None:
        self._agents = agents
        self._sessions = sessions

    async def find(self, scope: Scope) -> Listing | None:
        """The agent that the path names, as it is now."""
        await self._agents.ensure_fresh()
        return self._agents.find(scope["path_params"]["agent"])

    def make(self, scope: Scope, message: Message | None) -> Visit:
        """Raises UnknownAgentError, InvalidRequestError, SessionGoneError, and BusyError for a new session
        too many. A disabled agent is an unknown one, and a session of somebody else's is gone."""
        visitor = visitor_of(scope)
        principal = _as_mcp_client(visitor.principal)
        name = scope["path_params"]["agent"]
        headers = _passed(scope)
        listing = self._agents.find(name)
        session_id = headers.get(SESSION)
        session = None
        if session_id is not None:
            session = self._sessions.find(listing.record.name if listing else name, session_id, principal)
            if session is None:
                raise SessionGoneError
            listing = self._agents.find_listing(session.listing)
            if listing is None:
                self._sessions.close(session)
                raise SessionGoneError
        if listing is None or not listing.enabled:
            raise UnknownAgentError(name)
        if message is not None and message.method == "initialize" and session is None:
            self._sessions.check_room()
        trace = parse_trace_headers(_trace_headers(visitor.headers))
        return Visit(principal, headers, trace, listing, session)


def _as_mcp_client(principal: Principal) -> Principal:
    """Who has shown no token sees over MCP only what is exposed (DESIGN 2, visibility)."""
    if principal.kind != "anonymous":
        return principal
    return replace(principal, scopes=principal.scopes & _MCP_VIEW)


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
