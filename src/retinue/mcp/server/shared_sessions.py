"""The sessions of a hub's leader, in which its other processes answer calls.

A session stays with the leader: its streams, subscriptions and questions are there. Another process knows
whose it is and what its client can do, and answers a call of which the client hears nothing but the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.types import ASGIApp

from retinue.core.call import Principal
from retinue.mcp.session_records import SessionRecords
from retinue.mesh.channel import ASKABLE
from retinue.mesh.permissions import principal_key

if TYPE_CHECKING:  # with the SDK, which the first request loads
    from retinue.mcp.server.change_notifier import Live, RunningCall
    from retinue.mcp.server.sdk_internals import OpenSession

Tell = Callable[[str, Any], None]
"""Tells all other processes a piece of news under a name."""

SESSIONS = "sessions"
OPENED = "sessions opened"
ENDED = "session ended"
USED = "mcp is used"
CANCELLED = "request cancelled"


class SessionFacts(NamedTuple):
    """The facts of a session for another process; ``owner`` is the `principal_key` of its opener."""

    id: str
    owner: str
    is_askable: bool


class SharedSessions:
    """The open sessions of the leader, each told once its client has begun.

    ``is_used``: the server is made, because a client has used it. ``touch`` keeps a session from becoming
    idle. ``records`` let the next leader go on with the sessions.
    """

    def __init__(self, tell: Tell, records: SessionRecords) -> None:
        self._tell = tell
        self.records = records
        self._open: dict[str, SessionFacts] = {}
        self.is_used = False
        self.touch: Callable[[str], None] = lambda session_id: None

    def begin(self, touch: Callable[[str], None]) -> None:
        """The server is made; the other processes make theirs, so that no later call waits for it."""
        self.is_used, self.touch = True, touch
        self._tell(USED, True)

    def list_open(self) -> Sequence[Sequence[Any]]:
        """The sessions that were told, as rows of JSON."""
        return [list(facts) for facts in self._open.values()]

    def note(self, live: Live) -> None:
        """Tell of a session with its first message after ``initialize``; later ones change nothing."""
        connection = live.connection
        session_id, able = connection.session_id, connection.client_capabilities
        if session_id is None or session_id in self._open or able is None:
            return
        if connection.initialize_accepted:
            is_askable = any(getattr(able, kind) is not None for kind in ASKABLE)
            facts = self._open[session_id] = SessionFacts(session_id, live.owner, is_askable)
            self._tell(OPENED, [list(facts)])

    def end(self, session_id: str) -> None:
        """A session has ended; calls that other processes answer in it end with it."""
        self.records.remove(session_id)
        if self._open.pop(session_id, None) is not None:
            self._tell(ENDED, session_id)

    def cancel(self, session_id: str, request_id: str | int) -> None:
        """The client has cancelled a request that is not answered in this process."""
        if session_id in self._open:
            self._tell(CANCELLED, [session_id, request_id])


class FollowedSessions:
    """The sessions of the leader as another process knows them."""

    def __init__(self) -> None:
        self._facts: dict[str, SessionFacts] = {}
        self._calls: dict[str, dict[str | int, RunningCall]] = {}
        self._used: set[str] = set()

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._facts

    def replace(self, rows: Iterable[Sequence[Any]]) -> None:
        """Know these sessions only, as a leader has them that has just started; calls run to their end."""
        self._facts.clear()
        self.open(rows)

    def open(self, rows: Iterable[Sequence[Any]]) -> None:
        """Know these sessions as well."""
        for row in rows:
            facts = SessionFacts(*row)
            self._facts[facts.id] = facts

    def end(self, session_id: str) -> None:
        """Forget a session, and end its calls."""
        self._facts.pop(session_id, None)
        for running in list(self._calls.get(session_id, {}).values()):
            running.end("session")

    def cancel(self, session_id: str, request_id: str | int) -> None:
        """End the call that the client has cancelled, if it runs here."""
        running = self._calls.get(session_id, {}).get(_coerce(request_id))
        if running is not None:
            running.end("client")

    def take_used(self) -> list[str]:
        """The sessions that have had calls since the last time, or have some now."""
        used, self._used = self._used | self._calls.keys(), set()
        return sorted(used)

    def find(self, session_id: str, request_id: str | int, principal: Principal) -> OpenSession | None:
        """As `Sessions.find`."""
        from retinue.mcp.server.sdk_internals import OpenSession

        facts = self._facts.get(session_id)
        if facts is None or facts.owner != principal_key(principal):
            return None
        calls = self._calls.get(session_id, {})
        if _coerce(request_id) in calls:
            return None
        return OpenSession(calls, facts.is_askable, self._hold(session_id, calls))

    def has_request(self, session_id: str, request_id: str | int, principal: Principal) -> bool:
        """As `Sessions.has_request`, of the requests that this process answers."""
        facts = self._facts.get(session_id)
        is_own = facts is not None and facts.owner == principal_key(principal)
        return is_own and _coerce(request_id) in self._calls.get(session_id, {})

    def attend(self, principal: Principal) -> None:
        """The leader tells clients of changes."""

    @contextmanager
    def _hold(self, session_id: str, calls: dict[str | int, RunningCall]) -> Iterator[None]:
        self._used.add(session_id)
        # entered at once after `find`, or never where the leader answers the request
        self._calls[session_id] = calls
        try:
            yield
        finally:
            if not self._calls.get(session_id):
                self._calls.pop(session_id, None)


class LedSessions(NamedTuple):
    """The sessions of a leader, which answers itself what needs more of them."""

    sessions: FollowedSessions
    leader: ASGIApp


def _coerce(request_id: str | int) -> str | int:
    """The id as the SDK compares it: "7" and 7 are one."""
    if isinstance(request_id, str):
        try:
            return int(request_id)
        except ValueError:
            pass
    return request_id
