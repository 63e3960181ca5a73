"""Limits unsolicited output of an imported server: counts, slows down, reports and logs it.

Everything that a server sends costs time of the process that reads it. Beyond a budget it is read later, so
that the server waits in place of the calls of other servers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

FLOOD_BYTES = 1_000_000
"""Bytes that are read within one second before the reading waits for the next second."""

QUIET_S = 10.0
"""How long after its last flood a server counts as flooding."""

REQUESTS = 100
"""Requests of a server that are answered within one second, because each answer is a request of ours."""

MAX_LINES = 100
"""Log lines of one server that are written within one minute."""

_MINUTE_S = 60.0
_SHOWN_CHARACTERS = 1_000
_WINDOW_S = 1.0
_PIECE_COST = 100
"""Bytes that a line or message counts in addition to its length, because an empty one is work, too."""

_log = structlog.get_logger("retinue.imports")


class FloodMeter:
    """Counts unsolicited messages of one server; ``reason`` describes its flood, "" without one.

    A flood is more than ``flood_bytes`` within a second; it is over ``quiet_s`` after the last of them.
    """

    def __init__(self, *, flood_bytes: int = FLOOD_BYTES, quiet_s: float = QUIET_S) -> None:
        self.reason = ""
        self._flood_bytes = flood_bytes
        self._quiet_s = quiet_s
        self._on_change: Callable[[], None] = lambda: None
        self._began = 0.0
        self._taken = 0
        self._flooded_since = 0.0
        self._flooded_at = 0.0
        self._end: asyncio.TimerHandle | None = None

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Call ``on_change`` when ``reason`` changes."""
        self._on_change = on_change

    def count(self, what: str, size: int, *, pieces: int = 1) -> bool:
        """Count ``size`` bytes in so many lines or messages, sent to ``what``.

        True if no more should be read before `wait` returns.
        """
        return self._count(
            size + pieces * _PIECE_COST, f"it floods {what}: over {self._flood_bytes / 1e6:g} MB a second"
        )

    def count_request(self) -> bool:
        """Count a request of the server; True if it should be answered only when `wait` returns."""
        return self._count(self._flood_bytes // REQUESTS, f"it sends over {REQUESTS} requests a second")

    def _count(self, cost: int, reason: str) -> bool:
        now = asyncio.get_running_loop().time()
        if now - self._began >= _WINDOW_S:
            self._began, self._taken = now, 0
        self._taken += cost
        if self._taken <= self._flood_bytes:
            return False
        if now - self._flooded_at > 2 * _WINDOW_S:
            self._flooded_since = now
        self._flooded_at = now
        self._note(reason)
        return True

    @property
    def lasts_s(self) -> float:
        """How long the present flood has lasted; 0 without one."""
        is_over = asyncio.get_running_loop().time() - self._flooded_at > 2 * _WINDOW_S
        return 0.0 if is_over else self._flooded_at - self._flooded_since

    async def wait(self) -> None:
        """Wait for the next second."""
        await asyncio.sleep(self._began + _WINDOW_S - asyncio.get_running_loop().time())

    def close(self) -> None:
        """Report no more."""
        self._on_change = lambda: None
        if self._end is not None:
            self._end.cancel()

    def _note(self, reason: str) -> None:
        if self._end is not None:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(self._quiet_s, self._forget)
        if not self.reason:
            self.reason = reason
            self._on_change()

    def _forget(self) -> None:
        self.reason = ""
        self._on_change()


class LogLines:
    """Writes the log lines of ``server`` that belong to no caller to the log of this process.

    At most `MAX_LINES` a minute; the others are counted.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._began = float("-inf")
        self._written = 0

    def write(self, level: str, text: str) -> None:
        """Write one line; ``level`` is one of `LogLevel`."""
        now = time.monotonic()
        if now - self._began >= _MINUTE_S:
            if self._written > MAX_LINES:
                _log.warning("log lines left out", server=self._server, lines=self._written - MAX_LINES)
            self._began, self._written = now, 0
        self._written += 1
        if self._written <= MAX_LINES:
            getattr(_log, level)("server log", server=self._server, line=text[:_SHOWN_CHARACTERS])
        elif self._written == MAX_LINES + 1:
            _log.warning("further log lines of this minute are left out", server=self._server)
