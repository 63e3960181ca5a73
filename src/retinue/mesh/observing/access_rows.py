"""Audit rows of rejected tokens and of sign-ins at the dashboard, a bounded number for each address."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from cachetools import LRUCache

from retinue.core.call import new_id
from retinue.core.errors import RetinueError
from retinue.core.text import hide_tokens

ROWS_PER_MINUTE = 10
"""Rows for one address: rejected requests cost nothing, and rows take the place of others in the audit."""

_MAX_ADDRESSES = 10_000
_MAX_PATH_LENGTH = 200
_WINDOW_S = 60.0


class AccessRows:
    """Appends one row for each rejected token and each sign-in; ``monotonic`` gives seconds."""

    def __init__(
        self, append: Callable[[Mapping[str, Any]], None], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._append = append
        self._monotonic = monotonic
        self._windows: LRUCache[str, tuple[float, int]] = LRUCache(_MAX_ADDRESSES)

    def note(self, address: str, path: str, caller: str | None, error: RetinueError | None) -> None:
        """Record a rejection with its ``error``, or the sign-in of ``caller``."""
        at = self._monotonic()
        began, count = self._windows.get(address, (at, 0))
        if at - began >= _WINDOW_S:
            began, count = at, 0
        self._windows[address] = began, count + 1
        if count >= ROWS_PER_MINUTE:
            return
        row: dict[str, Any] = {
            "type": "ACCESS:SIGNED_IN" if error is None else "ACCESS:REJECTED",
            "id": new_id(),
            "address": address,
            "path": hide_tokens(path[:_MAX_PATH_LENGTH]),
            "caller": caller,
            "timestamp": datetime.now(UTC).isoformat(),
        }
        self._append(row if error is None else row | {"error": error.type})
