"""A drawing of a run has the steps to come, frames around groups, and a time line."""

from __future__ import annotations

from typing import Any

from retinue.dashboard.drawings.coming_steps import add_steps_to_come
from retinue.dashboard.drawings.step_levels import make_level
from retinue.dashboard.drawings.timeline import place_steps
from retinue.dashboard.figures import draw_steps

PLAN: list[dict[str, Any]] = [
    {"id": "a", "kind": "skill", "name": "plus"},
    {"id": "l", "kind": "loop", "steps": [{"id": "x", "kind": "skill"}, {"id": "y", "kind": "skill"}]},
    {"id": "e", "kind": "foreach", "steps": [{"id": "x", "kind": "skill"}, {"id": "y", "kind": "skill"}]},
    {"id": "p", "kind": "parallel", "branches": {"left": [{"id": "x", "kind": "skill"}], "right": []}},
    {"id": "s", "kind": "switch", "branches": {"one": [{"id": "x", "kind": "skill"}], "two": []}},
    {"id": "z", "kind": "wait_for"},
]


def step(path: str, status: str, *below: dict[str, Any], kind: str = "call", **facts: Any) -> dict[str, Any]:
    return {"step": path, "kind": "group" if below else kind, "status": status, "steps": list(below), **facts}


def flatten(steps: Any) -> dict[str, str]:
    return {
        path: status
        for one in steps
        for path, status in ((one["step"], one["status"]), *flatten(one.get("steps") or ()).items())
    }


def test_steps_to_come_stand_behind_those_that_have_begun_at_each_level_that_goes_on() -> None:
    steps = [
        step("a", "done"),
        step(
            "l",
            "running",
            step("l#1", "done", step("l#1.x", "done")),
            step("l#2", "running", step("l#2.x", "running")),
        ),
        step("e", "running", step("e#0", "waiting", step("e#0/x", "waiting"))),
        step("p", "running", step("p.left", "running", step("p.left/x", "running"))),
    ]
    shown = add_steps_to_come(steps, PLAN, ended=False)
    statuses = flatten(shown)
    assert [one["step"] for one in shown] == ["a", "l", "e", "p", "s", "z"]
    assert {path for path, status in statuses.items() if status == "to come"} == {
        "l#2.y", "e#0/y", "p.right", "s", "z",
    }  # fmt: skip
    assert [one["kind"] for one in shown[:4]] == ["call", "loop", "foreach", "parallel"]
    assert "l#1.y" not in statuses


def test_the_branch_that_a_switch_has_taken_is_completed_and_no_other() -> None:
    plan = [
        {
            **PLAN[4],
            "branches": {"one": [{"id": "x", "kind": "skill"}, {"id": "y", "kind": "skill"}], "two": PLAN},
        }
    ]
    (shown,) = add_steps_to_come(
        [step("s", "running", step("s.x", "running"), branch="one")], plan, ended=False
    )
    assert [one["step"] for one in shown["steps"]] == ["s.x", "s.y"]


def test_a_run_that_has_ended_says_which_outermost_steps_did_not_run() -> None:
    shown = add_steps_to_come([step("a", "failed"), step("handler", "done")], PLAN[:2], ended=True)
    assert [(one["step"], one["status"]) for one in shown] == [
        ("a", "failed"),
        ("l", "not run"),
        ("handler", "done"),
    ]


def test_a_group_has_a_frame_with_its_counts_around_its_steps() -> None:
    items = [step(f"e#{n}", "done" if n < 2 else "running", kind="group") for n in range(3)]
    shown = add_steps_to_come([step("e", "running", *items)], PLAN[2:3], ended=False)
    level = make_level(shown)
    assert level is not None
    graph = draw_steps(level.steps)
    (frame,) = graph.frames
    assert frame.label == "foreach: 2 done, 1 running"
    for box in graph.nodes:
        assert frame.x <= box.x
        assert box.x + graph.node_width <= frame.x + frame.width
        assert frame.y <= box.y
        assert box.y + graph.node_height <= frame.y + frame.height
    assert frame.x + frame.width <= graph.width
    assert frame.y + frame.height <= graph.height


def test_a_time_line_shows_when_steps_ran_and_how_long() -> None:
    attempts = [{"started_at": 100.0, "duration_ms": 1000.0}, {"started_at": 102.0, "duration_ms": 3000.0}]
    steps = [
        step("a", "done", started_at=100.0, duration_ms=3000.0, attempts=attempts),
        step("p", "running", step("p.x", "running", started_at=105.0)),
        step("z", "to come"),
    ]
    level = make_level(steps)
    assert level is not None
    bars = {bar.path: (bar.left, bar.width, bar.duration_ms) for bar in place_steps(level.rows, 100.0, 110.0)}
    assert bars == {"a": (0.0, 50.0, 5000.0), "p": (50.0, 50.0, 5000.0), "p.x": (50.0, 50.0, 5000.0)}
