"""Limits the connections of one listening process: waiting connections, held bytes, refusals.

The limits apply before a request reaches the application, so also before any token is read. Connections with
a whole request are in none of the lists here: a usual request costs no time-out and no bookkeeping.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import structlog

_log = structlog.get_logger("retinue.http")

LOG_INTERVAL_S = 60.0
MIN_PROGRESS_BYTES = 8192
"""A body that is not complete must bring this much in each ``body_s``."""

_SWEEP_S = 1.0
_MAX_LINGERING = 64


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of the HTTP server; the table ``[limits]`` of the settings.

    ``head_bytes`` limits url and headers together, also the trailers of a chunked body; ``headers`` their
    number. A head must be complete within ``head_s``, and a body must make progress in each ``body_s``.
    ``connections`` may be open at once. ``held_bytes`` limits the bodies of all unanswered requests together,
    not counting the first 64 KiB of each and bodies that are streamed to disk.
    """

    head_bytes: int = 64 * 1024
    headers: int = 100
    head_s: float = 15.0
    body_s: float = 15.0
    connections: int = 4096
    held_bytes: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a connection ends: status and text of the response, and a short reason for the log."""

    status: int
    reason: str
    detail: str


class Waiting(ABC):
    """A connection whose request is incomplete; `LimitedHttpProtocol` is the only one."""

    waiting_since_s = 0.0

    @abstractmethod
    def refuse(self, refusal: Refusal) -> None:
        """Answer with the refusal, if no response has begun, and close."""

    @abstractmethod
    def check_progress(self, now_s: float) -> None:
        """Refuse a body that has not made progress."""


class ConnectionGate:
    """The shared state of all connections of one server.

    ``is_streamed`` tells whether the bodies at a path are streamed to disk; they are not counted as held.
    """

    def __init__(
        self, limits: HttpLimits, loop: asyncio.AbstractEventLoop, is_streamed: Callable[[str], bool]
    ) -> None:
        self.limits = limits
        self.is_streamed = is_streamed
        self.held_bytes = 0
        self.is_leaving = False
        """Whether each response closes its connection, because the process ends soon."""
        self._heads: dict[Waiting, None] = {}
        self._bodies: dict[Waiting, None] = {}
        self._lingering = 0
        self._loop = loop
        self._sweep_s = min(_SWEEP_S, limits.head_s / 4, limits.body_s / 4)
        self._sweeping: asyncio.TimerHandle | None = None
        self._refused: Counter[str] = Counter()
        self._logged_s = -LOG_INTERVAL_S
        self.no_room = Refusal(
            503,
            "too many connections",
            f"this server has {limits.connections:,} connections open, its limit (limits.connections)",
        )
        self.head_too_large = Refusal(
            431,
            "head too large",
            f"url and headers are larger than {limits.head_bytes:,} bytes (limits.head_bytes)",
        )
        self.too_many_headers = Refusal(
            431, "too many headers", f"more than {limits.headers} headers (limits.headers)"
        )
        self.head_too_late = Refusal(
            408, "head incomplete", f"the headers were not complete in {limits.head_s:g} s (limits.head_s)"
        )
        self.evicted = Refusal(
            408,
            "head incomplete, connections exhausted",
            "closed for a newer connection, because the request was incomplete and no connection was left",
        )
        self.body_too_slow = Refusal(
            408,
            "body too slow",
            f"the body brought less than {MIN_PROGRESS_BYTES:,} bytes in {limits.body_s:g} s (limits.body_s)",
        )
        self.too_much_held = Refusal(
            503,
            "too many body bytes",
            f"the unanswered requests hold {limits.held_bytes:,} bytes, the limit (limits.held_bytes)",
        )

    def await_head(self, connection: Waiting) -> None:
        """Begin the time limit of a head, unless it runs already."""
        self._wait(connection, self._heads)

    def await_body(self, connection: Waiting) -> None:
        """Begin the time limit of a body, unless it runs already."""
        self._heads.pop(connection, None)
        self._wait(connection, self._bodies)

    def _wait(self, connection: Waiting, waiting: dict[Waiting, None]) -> None:
        if connection in waiting:
            return
        waiting[connection] = None
        connection.waiting_since_s = self._loop.time()
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(self._sweep_s, self._sweep)

    def end_wait(self, connection: Waiting) -> None:
        """The connection has a whole request, or is closed."""
        self._heads.pop(connection, None)
        self._bodies.pop(connection, None)

    def find_longest_waiting(self) -> Waiting | None:
        """The connection that has waited longest for the end of its head."""
        return next(iter(self._heads), None)

    def has_room(self, connections: int) -> bool:
        """Whether this number of connections, including refused ones, is within the limit."""
        return connections <= self.limits.connections + self._lingering

    def may_linger(self) -> bool:
        """Count a connection that stays open for a moment after its refusal; False when they are too many."""
        if self._lingering >= _MAX_LINGERING:
            return False
        self._lingering += 1
        return True

    def end_linger(self) -> None:
        self._lingering -= 1

    def note(self, refusal: Refusal) -> None:
        """Log the refusals since the last log line, at most once in `LOG_INTERVAL_S`."""
        self._refused[refusal.reason] += 1
        self._log_refused()
        if self._refused and self._sweeping is None:
            self._sweeping = self._loop.call_later(self._sweep_s, self._sweep)

    def _log_refused(self) -> None:
        now_s = self._loop.time()
        if self._refused and now_s - self._logged_s >= LOG_INTERVAL_S:
            self._logged_s = now_s
            counts = {reason: self._refused[reason] for reason in sorted(self._refused)}
            self._refused.clear()
            _log.warning("connections refused", counts=counts, next_in_s=LOG_INTERVAL_S)

    def _sweep(self) -> None:
        self._sweeping = None
        now_s = self._loop.time()
        late = [head for head in self._heads if now_s - head.waiting_since_s >= self.limits.head_s]
        for connection in late:
            connection.refuse(self.head_too_late)
        for connection in list(self._bodies):
            connection.check_progress(now_s)
        self._log_refused()
        if self._heads or self._bodies or self._refused:
            self._sweeping = self._loop.call_later(self._sweep_s, self._sweep)

    def close(self) -> None:
        """End the sweep; the server has stopped."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
