"""Computes further data of pages: figures of calls, drawings of steps, examples of a call."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import quote

from retinue.dashboard.asking import Json
from retinue.dashboard.drawings.shapes import Box, Graph, add_frames, draw_sparkline, place_layers
from retinue.dashboard.drawings.step_levels import ShownStep, unfold, write_counts

RECENT_CALLS = 1_000
RECENT_S = 300.0
CANCELLED = "cancelled"
"""The error of a call that its caller ended, which is no failure."""

_SEQUENCES = ("loop", "switch", "steps")
_KINDS = ("parallel", "loop", "switch", "think", "wait_for", "wait", "foreach", "steps")


def measure(calls: list[Json], now: float) -> Json:
    """Figures of the calls of the last five minutes."""
    times = sorted(call["duration_ms"] for call in calls)
    failed = sum(call["status"] in ("failed", "refused") and call.get("error") != CANCELLED for call in calls)
    buckets = [0.0] * 60
    for call in calls:
        buckets[59 - min(59, int((now - call["ended_at"]) / RECENT_S * 60))] += 1
    seconds = measure_period(calls, now)
    return {
        "count": len(calls),
        "per_second": len(calls) / seconds,
        "p50_ms": times[len(times) // 2] if times else None,
        "p95_ms": times[min(len(times) - 1, int(len(times) * 0.95))] if times else None,
        "failed": failed,
        "period_ms": seconds * 1000,
        "line": draw_sparkline(buckets),
    }


def measure_period(calls: Sequence[Json], now: float) -> float:
    """The seconds that recent calls cover: on a busy hub fewer than `RECENT_S`, because rows are bounded."""
    if len(calls) < RECENT_CALLS * 0.9:
        return RECENT_S
    return max(1.0, now - float(min(call["ended_at"] for call in calls)))


def find_waiting(steps: list[Json]) -> list[Json]:
    """The steps that wait for a person's answer."""
    return [step for step, _ in flatten(steps) if step.get("status") == "waiting" and step.get("topic")]


def flatten(steps: list[Json], depth: int = 0) -> Iterator[tuple[Json, int]]:
    """Each step with its depth, a step before those below it."""
    for step in steps:
        yield step, depth
        yield from flatten(step.get("steps") or [], depth + 1)


def draw_steps(steps: Sequence[ShownStep]) -> Graph:
    """The steps of a page from left to right, each step with the steps inside it in a frame.

    Iterations of a loop follow each other; branches, and the items of a foreach, are beside each other.
    """
    nodes: list[Box] = []
    edges: list[tuple[str, str]] = []
    groups: list[tuple[str, list[str]]] = []
    before: list[str] = []
    for step in steps:
        nodes.append(_step_node(step))
        # the items of a foreach and the branches of a step run beside each other
        if step.path[-1:].isdigit() and "#" in step.path.rpartition("/")[2]:
            before = []
        edges += [(name, step.path) for name in before]
        nodes += map(_step_node, step.below)
        below = [inner.path for inner in step.below]
        if step.facts.get("kind") in _SEQUENCES:
            edges += pairwise([step.path, *below])
            before = below[-1:] or [step.path]
        else:
            edges += [(step.path, path) for path in below]
            before = below or [step.path]
        if below and any(inner.status for inner in step.below):
            counts = Counter(inner.status for inner in step.below if inner.status)
            total = f"{step.facts['kind']}: " if step.facts.get("kind") not in (None, "", "group") else ""
            groups.append((f"{total}{write_counts(counts)}", [step.path, *below]))
    return add_frames(place_layers(nodes, edges), groups)


def _step_node(step: ShownStep) -> Box:
    facts = step.facts
    detail = facts.get("agent") or facts.get("skill") or facts.get("kind") or ""
    if facts.get("until"):
        detail = f"until {facts['until']}"
    if step.counts:
        detail = write_counts(step.counts)
    is_folded = bool(step.counts)
    return Box(step.path, step.path.rpartition("/")[2], str(detail), step.status, is_folded=is_folded)


def draw_definition(steps: list[Json]) -> Graph:
    """The steps of a definition, drawn as those of a run."""
    shown = []
    for number, step in enumerate(steps):
        path = str(step.get("id", number))
        below = [
            {"step": f"{path}/{inner.get('id', place)}", "kind": _kind_of(inner)}
            for place, inner in enumerate(_below(step))
        ]
        shown.append({"step": path, "kind": _kind_of(step), "steps": below})
    return draw_steps(unfold(shown))


def _kind_of(step: Mapping[str, Any]) -> str:
    named = step.get("skill") or step.get("role") or step.get("workflow")
    return str(named or next((kind for kind in _KINDS if step.get(kind)), ""))


def _below(step: Mapping[str, Any]) -> list[Json]:
    steps = [inner for inner in step.get("steps") or [] if isinstance(inner, Mapping)]
    for branch in (step.get("branches") or {}).values():
        steps += [inner for inner in branch if isinstance(inner, Mapping)] if isinstance(branch, list) else []
    return [dict(inner) for inner in steps]


def write_examples(url: str, agent: str, skill: str, arguments: Any) -> dict[str, str]:
    """The same call for a shell and for Python."""
    text = json.dumps(arguments, ensure_ascii=False)
    request = json.dumps({"jsonrpc": "2.0", "method": skill, "params": arguments, "id": "1"})
    address = f"{url}/agents/{quote(agent)}/execute"
    python = (
        "from retinue import Agent, Context\n\n"
        'agent = Agent("my-agent")\n\n\n'
        "@agent.skill\nasync def ask(ctx: Context) -> object:\n"
        f"    return await ctx.call({skill!r}, {arguments!r}, agent={agent!r})\n"
    )
    return {
        "retinue": f"retinue call {shlex.quote(skill)} {shlex.quote(text)} --agent {shlex.quote(agent)}",
        "curl": f"curl {shlex.quote(address)} -H 'content-type: application/json' -d {shlex.quote(request)}",
        "Python": python,
    }
