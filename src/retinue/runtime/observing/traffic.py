"""The traffic of a hub: calls of the last minute, and calls in flight, from its audit log."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from retinue.storage.audit_log import AuditLog

WINDOW_S = 60.0
_EVENTS = 5000
"""How many rows of the audit log are looked at; a busier hub shows a shorter window."""

_OWN = frozenset({"list_agents", "list_runs", "refresh_agents"})
"""Skills of the hub that this command and the processes of the mesh call by themselves."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Traffic:
    """The calls of the last ``window_s`` seconds through the hub; durations in milliseconds."""

    window_s: float
    calls: int
    failed: int
    p50_ms: float | None
    p95_ms: float | None
    by_agent: Mapping[str, int]
    in_flight: Sequence[Row]
    last: Sequence[Row]

    @property
    def per_s(self) -> float:
        return self.calls / self.window_s


def read_traffic(log: AuditLog, now: datetime, *, shown: int = 10) -> Traffic:
    """The traffic up to ``now``, from the hub's audit log."""
    events = [row for row in log.read_events(last=_EVENTS) if _skill_of(row) not in _OWN]
    ended = [row for row in events if row.get("type") == "CALL:ENDED"]
    done = {row["id"] for row in ended}
    begun = [row for row in events if row.get("type") == "EXEC:TOOL_CALL" and row["id"] not in done]
    recent = [row for row in ended if (now - _time_of(row)).total_seconds() <= WINDOW_S]
    durations = sorted(float(row["duration_ms"]) for row in recent)
    return Traffic(
        WINDOW_S,
        len(recent),
        sum(row["status"] != "done" for row in recent),
        _percentile(durations, 0.5),
        _percentile(durations, 0.95),
        Counter(str(row["agent"]) for row in recent if row.get("agent")),
        begun,
        ended[-shown:] if shown else [],
    )


def _skill_of(row: Row) -> Any:
    return row.get("skill", row.get("tool"))


def _time_of(row: Row) -> datetime:
    time = datetime.fromisoformat(str(row["timestamp"]).replace("Z", "+00:00"))
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _percentile(values: Sequence[float], share: float) -> float | None:
    """The nearest-rank percentile of sorted values; None of none."""
    return values[max(0, math.ceil(share * len(values)) - 1)] if values else None
