"""Levels of a run: what one page shows of many steps."""

from __future__ import annotations

from typing import Any

from retinue.dashboard.drawings.shapes import draw_tiles
from retinue.dashboard.drawings.step_levels import MAX_ROWS, MAX_UNFOLDED, PAGE, make_level, write_counts
from retinue.dashboard.figures import draw_steps

Json = dict[str, Any]


def make_run(items: int = 500, *, bad: int = 7) -> list[Json]:
    """A run of a step, a group of many items of one step each, and a last step."""
    each = [
        {
            "step": f"each#{n}",
            "kind": "group",
            "status": "done",
            "steps": [{"step": f"each#{n}/item", "kind": "call", "status": "failed" if n == bad else "done"}],
        }
        for n in range(1, items + 1)
    ]
    return [
        {"step": "first", "kind": "call", "status": "done"},
        {"step": "each", "kind": "group", "status": "done", "steps": each},
        {"step": "last", "kind": "call", "status": "done"},
    ]


def test_a_large_group_is_one_row_and_one_box_with_counts() -> None:
    level = make_level(make_run())
    assert level is not None
    assert [row.path for row in level.rows] == ["first", "each", "last"]
    assert level.rows[1].counts == {"done": 499, "failed": 1}
    assert level.rows[1].status == "failed"
    graph = draw_steps(level.steps)
    assert [(node.label, node.detail) for node in graph.nodes][1] == ("each", "499 done, 1 failed")
    assert [node.is_folded for node in graph.nodes] == [False, True, False]
    assert len(graph.lines) == 2


def test_a_group_is_opened_in_pages_that_have_every_item_once() -> None:
    seen: list[str] = []
    start: int | None = 0
    while start is not None:
        level = make_level(make_run(), "each", start)
        assert level is not None
        assert level.total == 500
        assert len(level.rows) <= MAX_ROWS
        seen += [step.path for step in level.steps]
        assert level.previous == (start - PAGE if start else None)
        start = level.next
    assert seen == [f"each#{n}" for n in range(1, 501)]


def test_a_small_group_is_shown_with_its_steps_and_a_step_below_it_can_be_opened_alone() -> None:
    steps = make_run(MAX_UNFOLDED)
    level = make_level(steps)
    assert level is not None
    assert len(level.rows) == 2 + 1 + 2 * MAX_UNFOLDED
    inner = make_level(steps, "each#3/item")
    assert inner is not None
    assert inner.within is not None
    assert inner.within["step"] == "each#3/item"
    assert [step["step"] for step in inner.around] == ["each", "each#3"]
    assert inner.total == 0


def test_failed_steps_of_all_depths_are_found_and_unknown_ones_are_not() -> None:
    failed = make_level(make_run(), failed=True)
    assert failed is not None
    assert [row.path for row in failed.rows] == ["each#7/item"]
    for path in ("eac", "each#", "each#501", "each#1/items", "/"):
        assert make_level(make_run(), path) is None


def test_a_page_behind_the_last_one_is_empty() -> None:
    level = make_level(make_run(), "each", 10_000)
    assert level is not None
    assert (level.rows, level.next) == ([], None)


def test_a_long_run_of_plain_steps_is_shown_in_pages() -> None:
    steps = [{"step": f"s{n}", "kind": "call", "status": "done"} for n in range(500)]
    level = make_level(steps, start=PAGE)
    assert level is not None
    assert [step.path for step in level.steps] == [f"s{n}" for n in range(PAGE, 2 * PAGE)]


def test_tiles_have_one_path_for_each_status() -> None:
    tiles = draw_tiles(["done"] * 60 + ["failed"])
    assert {name: path.count("M") for name, path in tiles.paths.items()} == {"done": 60, "failed": 1}
    assert (tiles.width, tiles.height) == (336, 36)


def test_counts_name_the_most_frequent_status_first() -> None:
    assert write_counts({"failed": 2, "done": 10}) == "10 done, 2 failed"
