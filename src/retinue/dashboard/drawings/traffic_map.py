"""The map of who calls whom: callers on the left, sources and their agents on the right, calls as edges.

Callers and agents of one source are folded to one box each; an opened source shows its agents, the busiest
first. The drawing has at most `MAX_CALLERS` and `MAX_TARGETS` boxes, however large the mesh is.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from retinue.dashboard.drawings.shapes import NODE_HEIGHT

Json = dict[str, Any]

MAX_CALLERS = 15
MAX_TARGETS = 25
MAX_ROWS = 200
"""Rows of the table; the drawing's edges are all in it, the busiest first."""

BOX_WIDTH = 230
_GAP_X, _GAP_Y, _PADDING = 200, 14, 6
_DEPTHS, _LATEST, _CLOCK_S = 4, 20, 0.005
_ENDED_BY_CALLER = "cancelled"


@dataclass(slots=True)
class Flow:
    """The calls of one caller to one agent."""

    caller: str
    target: str
    calls: int = 0
    failed: int = 0
    ms: float = 0.0

    def add(self, other: Flow) -> None:
        """Count the calls of another flow, too."""
        self.calls += other.calls
        self.failed += other.failed
        self.ms += other.ms


@dataclass(frozen=True, slots=True)
class MapBox:
    """A caller, an agent, or a source with its agents folded; ``opens`` is the source that a link opens."""

    id: str
    label: str
    detail: str
    status: str = ""
    opens: str | None = None
    link: str | None = None
    x: float = 0.0
    y: float = 0.0


@dataclass(frozen=True, slots=True)
class MapEdge:
    """A drawn line with its thickness in pixels, and its text."""

    path: str
    width: float
    is_failing: bool
    text: str


@dataclass(frozen=True, slots=True)
class TrafficMap:
    """The drawing, and the rows of the table: the same calls."""

    boxes: Sequence[MapBox]
    edges: Sequence[MapEdge]
    rows: Sequence[Flow]
    more: int
    width: float
    height: float
    box_width: int = BOX_WIDTH
    sources: Mapping[str, int] = field(default_factory=dict)


def count_flows(calls: Iterable[Json]) -> list[Flow]:
    """The calls of each caller to each agent, most calls first.

    The caller of a call within a trace is the agent whose call is around it, as far as the hub saw it.
    """
    flows: dict[tuple[str, str], Flow] = {}
    for call, caller in _find_callers(list(calls)):
        if call["agent"] is None:
            continue
        flow = flows.setdefault((caller, call["agent"]), Flow(caller, call["agent"]))
        is_failed = call["status"] != "done" and call.get("error") != _ENDED_BY_CALLER
        flow.add(Flow("", "", 1, int(is_failed), call["duration_ms"]))
    return sorted(flows.values(), key=lambda flow: (-flow.calls, flow.caller, flow.target))


def _find_callers(calls: Sequence[Json]) -> Iterable[tuple[Json, str]]:
    by_trace: dict[str, list[Json]] = {}
    for call in calls:
        by_trace.setdefault(call["trace_id"], []).append(call)
    for trace in by_trace.values():
        # of each depth the calls that began last: what is around a call began shortly before it
        latest: dict[int, deque[Json]] = {}
        for call in sorted(trace, key=lambda call: (call["started_at"], call["depth"])):
            around = (
                other
                for depth in range(call["depth"] - 1, max(-1, call["depth"] - 1 - _DEPTHS), -1)
                for other in reversed(latest.get(depth, ()))
                if call["ended_at"] <= other["ended_at"] + _CLOCK_S
            )
            nearest = next(around, None)
            yield call, _name_caller(call, nearest)
            if call["agent"] is not None:
                latest.setdefault(call["depth"], deque(maxlen=_LATEST)).append(call)


def _name_caller(call: Json, around: Json | None) -> str:
    """The agent that made a call within another one, else the caller; an agent of a team with its team."""
    if team := call.get("team"):
        return f"{call['caller']}@{team}"
    return str(call["caller"] if around is None else around["agent"])


def draw_traffic(
    flows: Sequence[Flow],
    agents: Sequence[Json],
    opened: str | None,
    period_s: float,
    sizes: Mapping[str, int] | None = None,
) -> TrafficMap:
    """The map of these flows; agents of the source ``opened`` have a box each, all others are folded.

    A mesh of few agents has a box for each. ``sizes`` are the numbers of agents by source, if ``agents`` are
    not all of them.
    """
    sources = {str(agent["name"]): str(agent.get("source", "")) for agent in agents}
    statuses = {str(agent["name"]): str(agent["status"]) for agent in agents}
    sizes = Counter(sources.values()) if sizes is None else sizes
    is_small = sum(sizes.values()) <= MAX_TARGETS - len(sizes)

    def place_of(agent: str) -> str:
        source = sources.get(agent)
        if source is None or is_small or source == opened:
            return f"agent {agent}"
        return f"source {source}"

    totals = Counter[str]()
    for flow in flows:
        totals[place_of(flow.target)] += flow.calls
    folded = {f"source {source}" for source in sizes if not is_small and source != opened}
    names = {f"agent {name}" for name, source in sources.items() if is_small or source == opened}
    # busy ones first, then those that do not answer, then all others by name
    targets = sorted(
        folded | names | set(totals),
        key=lambda place: (place not in folded, -totals[place], _rank(statuses.get(place[6:], "")), place),
    )
    rows = sum(agent.get("source") == opened for agent in agents)
    unknown = 0 if opened is None else max(0, sizes.get(opened, 0) - rows)
    rest = max(0, len(targets) - MAX_TARGETS) + unknown
    shown = set(targets[:MAX_TARGETS])
    by_caller = Counter[str]()
    for flow in flows:
        by_caller[flow.caller] += flow.calls
    callers = sorted(by_caller, key=lambda name: (-by_caller[name], name))
    kept = set(callers[: MAX_CALLERS - 1] if len(callers) > MAX_CALLERS else callers)
    drawn: dict[tuple[str, str], Flow] = {}
    for flow in flows:
        place = place_of(flow.target)
        caller = flow.caller if flow.caller in kept else ""
        key = (caller, place if place in shown else "more")
        drawn.setdefault(key, Flow(*key)).add(flow)
    boxes = {}
    left = [name for name in callers if name in kept] + ([""] if len(kept) < len(callers) else [])
    for row, name in enumerate(left):
        label = name or f"{len(callers) - len(kept)} more callers"
        calls = sum(flow.calls for (caller, _), flow in drawn.items() if caller == name)
        boxes[f"caller {name}"] = replace(
            MapBox(f"caller {name}", label, _rate(calls, period_s)), x=_PADDING, y=_top(row)
        )
    right = [*targets[:MAX_TARGETS], *(["more"] if rest else [])]
    for row, place in enumerate(right):
        boxes[place] = replace(
            _target_box(place, rest, sizes, statuses, totals[place], period_s),
            x=_PADDING + BOX_WIDTH + _GAP_X,
            y=_top(row),
        )
    most = max((flow.calls for flow in drawn.values()), default=1)
    edges = [
        _edge(boxes[f"caller {caller}"], boxes[place], flow, most, period_s)
        for (caller, place), flow in drawn.items()
    ]
    height = _top(max(len(left), len(right))) + _PADDING
    width = 2 * BOX_WIDTH + _GAP_X + 2 * _PADDING
    more = max(0, len(flows) - MAX_ROWS)
    foldable = {} if is_small else dict(sorted(sizes.items()))
    return TrafficMap(list(boxes.values()), edges, flows[:MAX_ROWS], more, width, height, sources=foldable)


def _target_box(
    place: str, rest: int, sizes: Mapping[str, int], statuses: Mapping[str, str], calls: int, period_s: float
) -> MapBox:
    kind, _, name = place.partition(" ")
    rate = _rate(calls, period_s)
    if kind == "source":
        return MapBox(place, name or "no source", f"{sizes[name]} agents, {rate}", opens=name)
    if kind == "agent":
        status = statuses.get(name, "")
        detail = rate if status in ("", "available") else f"{status}, {rate}"
        return MapBox(place, name, detail, status, link=name if status else None)
    return MapBox(place, f"{rest} more agents", "in the table")


def _edge(a: MapBox, b: MapBox, flow: Flow, most: int, period_s: float) -> MapEdge:
    x1, y1 = a.x + BOX_WIDTH, a.y + NODE_HEIGHT / 2
    x2, y2 = b.x, b.y + NODE_HEIGHT / 2
    bend = (x2 - x1) / 2
    path = f"M{x1:g} {y1:g}C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2:g} {y2:g}"
    text = f"{a.label} to {b.label}: {_rate(flow.calls, period_s)}, {flow.failed} failed"
    return MapEdge(path, round(1 + 5 * (flow.calls / most) ** 0.5, 1), flow.failed > 0, text)


def _rank(status: str) -> int:
    return 1 if status in ("available", "unknown") else 0


def _rate(calls: int, period_s: float) -> str:
    if not calls:
        return "no calls"
    return f"{calls} {'call' if calls == 1 else 'calls'}, {calls / max(period_s, 1e-9) * 60:.3g} a minute"


def _top(row: int) -> float:
    return _PADDING + row * (NODE_HEIGHT + _GAP_Y)
