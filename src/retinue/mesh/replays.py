"""Which signed messages were seen already: each counts once, and only for a short time after it was sent.

Both together need little memory: what is too old need not be remembered. When more come in than are
remembered, what could have been forgotten counts as too old, so that no repetition ever passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

WINDOW_S = 60.0
"""How far the clocks of two machines, and the way between them, may be apart."""


class ReplayWindow:
    """Remembers signatures for ``window_s`` before and after now, at most ``keep`` of them."""

    def __init__(
        self, *, window_s: float = WINDOW_S, keep: int = 200_000, clock: Callable[[], float] = time.time
    ) -> None:
        self._window_ms = window_s * 1000
        self._keep = keep
        self._clock = clock
        self._seen: dict[str, int] = {}
        self._forgotten_ms = 0

    def find_flaw(self, mac: str, sent_at_ms: int) -> str | None:
        """Why this message does not count, None when it does; asked once for each message."""
        now_ms = self._clock() * 1000
        if sent_at_ms <= max(now_ms - self._window_ms, self._forgotten_ms):
            return "it is too old"
        if sent_at_ms > now_ms + self._window_ms:
            return "its time has not come: do the clocks differ?"
        if mac in self._seen:
            return "it was sent before"
        if len(self._seen) >= self._keep:
            self._forget(now_ms - self._window_ms)
        self._seen[mac] = sent_at_ms
        return None

    def _forget(self, too_old_ms: float) -> None:
        """Forget what has become too old; where that is little, the older half of all."""
        kept = {mac: at for mac, at in self._seen.items() if at > too_old_ms}
        if len(kept) > self._keep // 2:
            self._forgotten_ms = sorted(kept.values())[len(kept) // 2]
            kept = {mac: at for mac, at in kept.items() if at > self._forgotten_ms}
        self._seen = kept
