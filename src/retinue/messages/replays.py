"""Accepts each signed message once: limits its age, and remembers it for that time.

A message that was signed before the process started is refused, because an earlier process may have seen it.
When the clock of this machine is set back, that time moves with it, because otherwise all messages would be
refused until the old time is reached again. A message that was forgotten before can then be taken once more,
if its timestamp is near the new time.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable

from retinue.messages.codec.envelope import parse_time
from retinue.web.mesh_tokens import STEP_S

MAX_AGE_S = 300.0
KEEP = 100_000
"""Signed messages that are remembered; with more, the age that is allowed shrinks."""


class SignedOnce:
    """The signed messages that one process has taken.

    ``max_age_s`` is how far a timestamp may be from now, ``since`` when the process started; times are Unix
    times in seconds.
    """

    def __init__(
        self,
        max_age_s: float = MAX_AGE_S,
        *,
        since: float = 0.0,
        keep: int = KEEP,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_age_s = max_age_s
        self._since = since
        self._keep = keep
        self._clock = clock
        self._monotonic = monotonic
        self._offset_s = clock() - monotonic()
        self._forgets_after = monotonic()
        """Until then, by the monotonic clock, no message is dropped for its age."""
        self._seen: set[bytes] = set()
        self._by_age: list[tuple[float, bytes]] = []

    @property
    def count(self) -> int:
        """Number of messages that are remembered."""
        return len(self._seen)

    def find_flaw(self, timestamp: object, digest: bytes) -> str | None:
        """Why a message with a valid signature is not taken; None when it is, and remembered.

        ``digest`` is that of what the signature covers.
        """
        moment = parse_time(timestamp) if isinstance(timestamp, str) else None
        if moment is None:
            return "a signed message needs its timestamp, a time in ISO 8601"
        at, now = moment.timestamp(), self._clock()
        self._follow_steps(now)
        if abs(now - at) > self._max_age_s:
            where = "old" if at < now else "in the future"
            return f"its timestamp is {abs(now - at):,.0f} s {where}; {self._max_age_s:g} s are allowed"
        if at < self._since:
            return "it was signed before this process started to remember signed messages"
        if digest in self._seen:
            return "the same message was received before"
        self._remember(at, digest, now)
        return None

    def _follow_steps(self, now: float) -> None:
        """Find out whether the clock was set since the last message."""
        ticks = self._monotonic()
        offset_s = now - ticks
        step_s = offset_s - self._offset_s
        if abs(step_s) <= STEP_S:
            return
        self._offset_s = offset_s
        if step_s < 0:
            self._since += step_s
        else:  # the clock may be set back to where these messages are young
            self._forgets_after = ticks + 2 * self._max_age_s

    def _remember(self, at: float, digest: bytes, now: float) -> None:
        self._seen.add(digest)
        heapq.heappush(self._by_age, (at, digest))
        oldest = now - self._max_age_s if self._monotonic() >= self._forgets_after else 0.0
        while self._by_age and (self._by_age[0][0] < oldest or len(self._by_age) > self._keep):
            dropped, forgotten = heapq.heappop(self._by_age)
            self._seen.discard(forgotten)
            # what is forgotten must not be taken again
            self._since = max(self._since, dropped + 0.001)
