"""The map of who calls whom: callers from traces, folding by source, bounds, and the table beside it."""

from __future__ import annotations

from typing import Any

from retinue.dashboard.drawings.shapes import NODE_HEIGHT
from retinue.dashboard.drawings.traffic_map import (
    BOX_WIDTH,
    MAX_CALLERS,
    MAX_ROWS,
    MAX_TARGETS,
    Flow,
    TrafficMap,
    count_flows,
    draw_traffic,
)


def call(
    agent: str | None, start: float, end: float, *, depth: int = 0, trace: str = "t", **facts: Any
) -> Any:
    return {
        "agent": agent,
        "caller": "ada",
        "trace_id": trace,
        "depth": depth,
        "status": "done",
        "started_at": start,
        "ended_at": end,
        "duration_ms": (end - start) * 1000,
        **facts,
    }


def agents(count: int, sources: int) -> list[dict[str, Any]]:
    return [
        {"name": f"a{n}", "status": "available", "source": f"registry-{n % sources}"} for n in range(count)
    ]


def check_boxes(shown: TrafficMap) -> None:
    places = [(box.x, box.y) for box in shown.boxes]
    for number, (x1, y1) in enumerate(places):
        assert 0 <= x1 <= shown.width - BOX_WIDTH
        assert 0 <= y1 <= shown.height - NODE_HEIGHT
        assert all(abs(x1 - x2) >= BOX_WIDTH or abs(y1 - y2) >= NODE_HEIGHT for x2, y2 in places[:number])


def test_the_caller_of_a_call_is_the_agent_around_it_in_its_trace() -> None:
    calls = [
        call("shop", 0, 10),
        call("till", 1, 2, depth=1, status="failed", error="timeout"),
        call("till", 3, 4, depth=1),
        call("bank", 3.2, 3.8, depth=2, status="failed", error="cancelled"),
        call("bank", 11, 12, depth=1),
        call("bank", 1, 2, trace="other"),
        call(None, 1, 2, trace="refused", status="refused"),
    ]
    flows = [(flow.caller, flow.target, flow.calls, flow.failed) for flow in count_flows(calls)]
    assert flows == [
        ("ada", "bank", 2, 0),
        ("shop", "till", 2, 1),
        ("ada", "shop", 1, 0),
        ("till", "bank", 1, 0),
    ]


def test_many_calls_of_one_trace_are_counted_in_a_short_time() -> None:
    calls = [call("root", 0, 2_000), *(call("leaf", n, n + 0.5, depth=1) for n in range(1, 1_000))]
    assert [(flow.caller, flow.calls) for flow in count_flows(calls)] == [("root", 999), ("ada", 1)]


def test_a_small_mesh_has_a_box_for_each_agent_also_without_calls() -> None:
    shown = draw_traffic([Flow("ada", "a0", 3, 1, 30.0)], agents(4, 2), None, 60.0)
    assert {box.id for box in shown.boxes} == {"caller ada", "agent a0", "agent a1", "agent a2", "agent a3"}
    (edge,) = shown.edges
    assert edge.is_failing
    assert edge.text == "ada to a0: 3 calls, 3 a minute, 1 failed"
    assert not shown.sources
    check_boxes(shown)


def test_500_agents_are_folded_by_source_and_an_opened_source_shows_its_busiest() -> None:
    mesh = agents(500, 4)
    flows = [Flow(f"c{n % 40}", f"a{n}", 500 - n, 0, 1.0) for n in range(500)]
    folded = draw_traffic(flows, mesh, None, 300.0)
    assert [box.id for box in folded.boxes if box.opens is not None] == [
        f"source registry-{n}" for n in range(4)
    ]
    assert sum(box.id.startswith("caller") for box in folded.boxes) == MAX_CALLERS
    assert len(folded.rows) == MAX_ROWS
    assert folded.more == 300
    assert folded.sources == {f"registry-{n}": 125 for n in range(4)}
    check_boxes(folded)
    opened = draw_traffic(flows, mesh, "registry-1", 300.0)
    ids = [box.id for box in opened.boxes]
    assert {"source registry-0", "agent a1", "agent a5", "more"} <= set(ids)
    assert "source registry-1" not in ids
    assert len(opened.boxes) <= MAX_CALLERS + MAX_TARGETS + 1
    check_boxes(opened)


def test_agents_without_a_row_are_counted_on_the_map() -> None:
    rows = agents(40, 1)
    source = rows[0]["source"]
    folded = draw_traffic([], rows, None, 300.0, {source: 100_000})
    assert [box.detail for box in folded.boxes] == ["100000 agents, no calls"]
    opened = draw_traffic([], rows, source, 300.0, {source: 100_000})
    assert opened.boxes[-1].label == f"{100_000 - MAX_TARGETS} more agents"


def test_a_mesh_without_calls_or_agents_is_drawn() -> None:
    assert draw_traffic([], [], None, 300.0).boxes == []
    shown = draw_traffic([Flow("ada", "gone", 1)], [], None, 300.0)
    assert {box.id for box in shown.boxes} == {"caller ada", "agent gone"}
