"""Drawings: layers of steps, bars of a trace, spirals of agents."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retinue.dashboard.drawings.shapes import (
    MAX_NODES,
    NODE_HEIGHT,
    NODE_WIDTH,
    Box,
    draw_sparkline,
    place_bars,
    place_layers,
    place_spiral,
)

names = st.integers(0, 12).map(str)


@given(st.lists(names, unique=True), st.lists(st.tuples(names, names)))
def test_no_two_boxes_overlap_and_lines_lead_to_the_right_where_there_is_no_cycle(
    ids: list[str], edges: list[tuple[str, str]]
) -> None:
    forward = [(a, b) for a, b in edges if int(a) < int(b)]
    graph = place_layers([Box(name, name) for name in ids], forward)
    assert {node.id for node in graph.nodes} == set(ids)
    places = {node.id: (node.x, node.y) for node in graph.nodes}
    for a, (x1, y1) in places.items():
        assert 0 <= x1 <= graph.width - NODE_WIDTH
        for b, (x2, y2) in places.items():
            assert a == b or abs(x1 - x2) >= NODE_WIDTH or abs(y1 - y2) >= NODE_HEIGHT
    for a, b in forward:
        if a in places and b in places:
            assert places[a][0] < places[b][0]


def test_a_cycle_and_too_many_nodes_are_drawn() -> None:
    graph = place_layers([Box("a", "a"), Box("b", "b")], [("a", "b"), ("b", "a")])
    assert len(graph.nodes) == 2
    assert len(place_layers([Box(str(n), "") for n in range(500)], []).nodes) == MAX_NODES


def test_bars_stand_where_their_calls_ran() -> None:
    calls = [
        {"started_at": 10.0, "ended_at": 12.0, "depth": 1},
        {"started_at": 11.0, "ended_at": 11.5, "depth": 2},
    ]
    bars, length_ms = place_bars(calls)
    assert length_ms == 2000
    assert [(bar.left, bar.width, bar.indent) for bar in bars] == [(0.0, 100.0, 0), (50.0, 25.0, 1)]
    assert place_bars([]) == ([], 0.0)


def test_dots_keep_their_places_while_the_list_grows_and_do_not_overlap() -> None:
    few = place_spiral([(str(n), "") for n in range(50)], 200)
    many = place_spiral([(str(n), "") for n in range(500)], 200)
    assert many[:50] == few
    closest = min(
        (a.x - b.x) ** 2 + (a.y - b.y) ** 2 for n, a in enumerate(many) for b in many[n + 1 : n + 60]
    )
    assert closest > 9.0**2 / 2


def test_a_sparkline_has_a_point_for_each_value() -> None:
    assert draw_sparkline([]) == ""
    assert draw_sparkline([0, 0]).count("L") == 1
    assert draw_sparkline([1, 2, 3]).startswith("M0.0 ")
