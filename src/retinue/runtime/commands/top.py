"""Takes a snapshot of a mesh: agents, calls of the last minute, calls in flight, and runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from retinue.core.errors import RetinueError
from retinue.runtime.commands.client import open_client
from retinue.settings import Settings
from retinue.storage.audit_log import AuditLog
from retinue.storage.state import State

WINDOW_S = 60.0
_EVENTS = 5000
"""How many rows of the audit log are looked at; a busier hub shows a shorter window."""

_SHOWN_RUNS = 20
_ASK_WITHIN_S = 5.0
_OWN = frozenset({"list_agents", "list_runs", "refresh_agents"})
"""Skills of the hub that this command and the processes of the mesh call by themselves."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Listed:
    """The replies of the hub; ``problem`` says why it gave no answer."""

    agents: Sequence[Row] = ()
    runs: Sequence[Row] = ()
    problem: str | None = None


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


async def ask_hub(settings: Settings, state: State, url: str) -> Listed:
    """The agents and the running runs; a hub that does not answer is a problem, not an error."""
    try:
        async with open_client(settings, state, hub_url=url) as client:
            agents = await client.get("list_agents", timeout_s=_ASK_WITHIN_S)
            asked = {"status": "running", "limit": _SHOWN_RUNS}
            runs = await client.get("list_runs", asked, timeout_s=_ASK_WITHIN_S)
    except RetinueError as error:
        return Listed(problem=error.message)
    return Listed(agents["agents"], runs["runs"])


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
    found = datetime.fromisoformat(str(row["timestamp"]).replace("Z", "+00:00"))
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _percentile(values: Sequence[float], share: float) -> float | None:
    """The nearest-rank percentile of sorted values; None of none."""
    return values[max(0, math.ceil(share * len(values)) - 1)] if values else None
