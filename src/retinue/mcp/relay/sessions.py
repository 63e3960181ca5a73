"""Owners of MCP sessions: a session id works only for its own principal.

The sessions themselves live in the agents, one for each session of a client. A forgotten session is
answered like an unknown one, with 404, and the client opens another (as the specification says).
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from retinue.core.call import Principal
from retinue.core.errors import BusyError
from retinue.core.record import ListingKey
from retinue.mcp.session_records import RelayedRecords
from retinue.mesh.permissions import principal_key

MAX_SESSIONS = 10_000
IDLE_S = 1800.0
"""A session without a request in flight or an open stream expires after this time, as in the SDK."""


@dataclass(slots=True)
class RelayedSession:
    """One session: its agent, its owner and the number of its requests in flight."""

    agent: str
    id: str
    listing: ListingKey
    owner: str
    last_used: float
    in_flight: int = 0
    questions: dict[str, asyncio.Event] = field(default_factory=dict)
    """By request id: questions of the agent that the client has not answered yet."""


class RelayedSessions:
    """A bounded table by agent and session id: agents choose their ids independently.

    ``records`` are those of all leaders of a hub, which go on with each other's sessions.
    """

    def __init__(
        self,
        *,
        max_sessions: int = MAX_SESSIONS,
        idle_s: float = IDLE_S,
        clock: Callable[[], float] = time.monotonic,
        records: RelayedRecords | None = None,
    ) -> None:
        self._records = records
        self._max = max_sessions
        self._idle_s = idle_s
        self._clock = clock
        self._open: OrderedDict[tuple[str, str], RelayedSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def check_room(self) -> None:
        """Raise BusyError when no more sessions can be opened."""
        self._expire()
        if len(self._open) >= self._max:
            raise BusyError(f"{self._max:,} MCP sessions are open", 60.0)

    def open(self, agent: str, session_id: str, listing: ListingKey, principal: Principal) -> bool:
        """Record a session that ``listing`` has opened; False when the id belongs to another one."""
        key, owner = (agent, session_id), principal_key(principal)
        known = self._find(agent, session_id)
        if known is not None:
            return (known.listing, known.owner) == (listing, owner)
        self._open[key] = RelayedSession(agent, session_id, listing, owner, self._clock())
        if self._records is not None:
            self._records.add(agent, session_id, listing, owner)
        return True

    def find(self, agent: str, session_id: str, principal: Principal) -> RelayedSession | None:
        """The session, if this principal owns it; None for a session of another, as for an unknown one."""
        self._expire()
        session = self._find(agent, session_id)
        if session is None or session.owner != principal_key(principal):
            return None
        return session

    def is_open(self, agent: str, session_id: str) -> bool:
        """Whether the table has the session, whosoever owns it."""
        return (agent, session_id) in self._open

    def close(self, session: RelayedSession) -> None:
        """Forget a session that has ended."""
        self._open.pop((session.agent, session.id), None)
        self._forget(session)

    @contextmanager
    def using(self, session: RelayedSession | None) -> Iterator[None]:
        """Keep a session while a request of it is in flight."""
        if session is None:
            yield
            return
        session.in_flight += 1
        try:
            yield
        finally:
            session.in_flight -= 1
            session.last_used = self._clock()
            key = (session.agent, session.id)
            if key in self._open:
                self._open.move_to_end(key)

    def _find(self, agent: str, session_id: str) -> RelayedSession | None:
        """The session in the table; one that another leader had comes into it again."""
        session = self._open.get((agent, session_id))
        if session is None and self._records is not None:
            record = self._records.find(agent, session_id)
            if record is not None and len(self._open) < self._max:
                session = RelayedSession(agent, session_id, *record, self._clock())
                self._open[agent, session_id] = session
        return session

    def _forget(self, session: RelayedSession) -> None:
        if self._records is not None:
            self._records.remove(session.agent, session.id)

    def _expire(self) -> None:
        """Forget the sessions that were idle too long; the table is ordered by last use."""
        oldest = self._clock() - self._idle_s
        kept: list[RelayedSession] = []
        while self._open:
            session = next(iter(self._open.values()))
            if session.last_used > oldest:
                break
            del self._open[session.agent, session.id]
            if session.in_flight:
                session.last_used = self._clock()
                kept.append(session)
            else:
                self._forget(session)
        for session in kept:
            self._open[session.agent, session.id] = session
