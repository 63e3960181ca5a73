"""Places the steps of a run on a time line, from the start of the run to its end or to now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retinue.dashboard.drawings.step_levels import ShownStep


@dataclass(frozen=True, slots=True)
class TimeBar:
    """One step: where its bar begins and how long it is, in per cent of the time line."""

    path: str
    status: str
    depth: int
    left: float
    width: float
    duration_ms: float


def place_steps(rows: Sequence[ShownStep], begin: float, end: float) -> list[TimeBar]:
    """The bars of the steps that have begun; ``begin`` and ``end`` are seconds since 1970."""
    length = max(end - begin, 1e-6)
    bars = []
    for row in rows:
        span = _span(row.facts, end)
        if span is None:
            continue
        left = min(max((span[0] - begin) / length * 100, 0.0), 99.7)
        width = min(max((span[1] - span[0]) / length * 100, 0.3), 100 - left)
        duration_ms = (span[1] - span[0]) * 1000
        bars.append(TimeBar(row.path, row.status, row.depth, round(left, 2), round(width, 2), duration_ms))
    return bars


def _span(facts: Mapping[str, Any], end: float) -> tuple[float, float] | None:
    """When a step began and ended; that of a group is the span of the steps inside."""
    spans = [span for inner in facts.get("steps") or [] if (span := _span(inner, end)) is not None]
    if (started := facts.get("started_at")) is not None:
        duration_ms = facts.get("duration_ms")
        attempts = [
            attempt for attempt in facts.get("attempts") or [] if attempt.get("duration_ms") is not None
        ]
        if attempts:
            last = attempts[-1]
            spans.append((started, last["started_at"] + last["duration_ms"] / 1000))
        elif duration_ms is not None:
            spans.append((started, started + duration_ms / 1000))
        elif facts.get("status") in ("running", "waiting"):
            spans.append((started, end))
        else:
            spans.append((started, started))
    return (min(span[0] for span in spans), max(span[1] for span in spans)) if spans else None
