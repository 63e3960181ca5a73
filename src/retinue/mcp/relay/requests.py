"""Reads a request to the relay before anything is forwarded: its caller, its agent and its session."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import Scope

from retinue.core.call import Principal, TraceContext
from retinue.core.errors import InvalidRequestError, UnknownAgentError
from retinue.core.quick_dataclass import quick_dataclass
from retinue.core.record import Listing
from retinue.mcp.codec.messages import Message, is_modern
from retinue.mcp.codec.wire import SESSION_HEADER, VERSION_HEADER
from retinue.mcp.relay.sessions import RelayedSession, RelayedSessions
from retinue.mesh.directory.directory import Directory
from retinue.mesh.entry import Entry
from retinue.mesh.permissions import Access, AgentView, as_mcp_client, is_seen
from retinue.web.codec.trace import TRACE_KEYS, parse_trace_headers
from retinue.web.security import Headers, identity_of

_FORWARDED = frozenset(
    (
        b"accept",
        b"content-type",
        b"last-event-id",
        b"mcp-method",
        b"mcp-name",
        SESSION_HEADER.encode(),
        VERSION_HEADER.encode(),
    )
)
_FORWARDED_PREFIX = b"mcp-param-"
_TRACE = frozenset(key.encode() for key in TRACE_KEYS)


@quick_dataclass(frozen=True, slots=True)
class RelayRequest:
    """One admitted request: its caller, the headers for the agent, the agent and the session."""

    principal: Principal
    headers: Mapping[str, str]
    trace: TraceContext | None
    listing: Listing
    session: RelayedSession | None

    @property
    def is_modern(self) -> bool:
        return is_modern(self.headers.get(VERSION_HEADER))


class SessionGoneError(Exception):
    """The session does not exist or belongs to another principal; the client has to open another one."""


class RequestReader:
    """Makes a `RelayRequest` of each HTTP request, or raises the reason why not."""

    def __init__(self, directory: Directory, access: Access, sessions: RelayedSessions) -> None:
        self._directory = directory
        self._access = access
        self._sessions = sessions

    async def find(self, scope: Scope) -> Listing | None:
        """The agent that the path names; None also where the caller may not see it."""
        await self._directory.ensure_fresh(for_call=True)
        view = self._access.view_of(identity_of(scope).principal)
        return await self._open(self._directory.find_named(scope["path_params"]["agent"], view=view), view)

    async def make(self, scope: Scope, message: Message | None, listing: Listing | None) -> RelayRequest:
        """The request to ``listing``, which `find` returned.

        Raises UnknownAgentError (also for a disabled agent), InvalidRequestError, SessionGoneError (also
        for a session of another principal) and BusyError when too many sessions are open.
        """
        visitor = identity_of(scope)
        principal = as_mcp_client(visitor.principal)
        name = scope["path_params"]["agent"]
        headers = _forwarded(scope)
        session_id = headers.get(SESSION_HEADER)
        session = None
        if session_id is not None:
            session = self._sessions.find(listing.record.name if listing else name, session_id, principal)
            if session is None:
                raise SessionGoneError
            if listing is None or listing.id != session.listing:
                view = self._access.view_of(principal)
                listing = await self._open(self._directory.find_entry(session.listing), view)
            if listing is None:
                self._sessions.close(session)
                raise SessionGoneError
        if listing is None or not listing.enabled:
            raise UnknownAgentError(name)
        if message is not None and message.method == "initialize" and session is None:
            self._sessions.check_room()
        trace = parse_trace_headers(_trace_headers(visitor.headers))
        return RelayRequest(principal, headers, trace, listing, session)

    async def _open(self, entry: Entry | None, view: AgentView | None) -> Listing | None:
        """The whole listing; read again, it may have another name."""
        listing = None if entry is None else await self._directory.open(entry)
        return listing if listing is not None and is_seen(view, listing.name) else None


def _forwarded(scope: Scope) -> dict[str, str]:
    """The headers for the agent, by lower-case name; raises InvalidRequestError for a repeated header."""
    fields: dict[str, str] = {}
    for raw, value in scope["headers"]:
        if raw in _FORWARDED or raw.startswith(_FORWARDED_PREFIX):
            name = raw.decode("latin-1")
            if name in fields:
                # of two values, this hub might read one and the agent the other
                raise InvalidRequestError(f"the header {name} appears more than once")
            fields[name] = value.decode("utf-8", "replace")
    return fields


def _trace_headers(headers: Headers) -> dict[str, str]:
    return {key.decode(): headers[key].decode("latin-1") for key in _TRACE if key in headers}
