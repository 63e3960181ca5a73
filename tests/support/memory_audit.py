"""An audit log in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any


class MemoryAudit:
    """Keeps the newest ``keep`` rows."""

    def __init__(self, keep: int = 10_000) -> None:
        self._rows: deque[Mapping[str, Any]] = deque(maxlen=keep)

    def append(self, row: Mapping[str, Any]) -> None:
        self._rows.append(dict(row))

    def recent(self, limit: int) -> Sequence[Mapping[str, Any]]:
        return [row for _, row in zip(range(limit), reversed(self._rows), strict=False)]
