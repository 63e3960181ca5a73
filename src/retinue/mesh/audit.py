"""Who called what, when, and what became of it: the port, its twin, and the observer that fills it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from retinue.mesh.events import Event
from retinue.mesh.redaction import MIN_TOKEN_LENGTH, hide_tokens

_SAID_BY_CALLERS = frozenset({"skill", "tool", "agent", "caller", "id", "trace_id"})
"""Where a caller's own text stands, which may be a token that was put into the wrong place."""


class AuditLog(Protocol):
    """An append-only list of rows; rows are flat JSON objects without arguments or values."""

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one row; may be buffered, never blocks on a slow disk for long."""

    def recent(self, limit: int) -> Sequence[Mapping[str, Any]]:
        """The newest rows, newest first."""


class MemoryAudit:
    """The in-memory twin; keeps the newest ``keep`` rows."""

    def __init__(self, keep: int = 10_000) -> None:
        self._rows: deque[Mapping[str, Any]] = deque(maxlen=keep)

    def append(self, row: Mapping[str, Any]) -> None:
        self._rows.append(dict(row))

    def recent(self, limit: int) -> Sequence[Mapping[str, Any]]:
        return [row for _, row in zip(range(limit), reversed(self._rows), strict=False)]


def record_calls(audit: AuditLog) -> Callable[[Event], None]:
    """An observer that appends every event; a ToolCallEvent without its arguments (they may be secret)."""

    def observe(event: Event) -> None:
        row = event.as_json()
        row.pop("arguments", None)
        for key in _SAID_BY_CALLERS & row.keys():
            if len(row[key] or "") >= MIN_TOKEN_LENGTH:
                row[key] = hide_tokens(row[key])
        audit.append(row)

    return observe
