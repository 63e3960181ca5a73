"""A run as a tree, and the effects it has had: read from events and records alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from retinue.core.errors import AgentUnreachableError, BusyError, NotAllowedError
from retinue.workflows.runs.records import RunEvent, StepOutcome, StepRecord
from retinue.workflows.runs.tree import draw_tree, list_effects
from tests.workflows.running import Bench, failing


async def draw(bench: Bench, text: str, given: Any = None) -> list[dict[str, Any]]:
    record = await bench.run(text, given, run_id="r")
    return draw_tree(await bench.events("r"), await bench.runs.list_steps("r"), ended=record.status)


def paths(nodes: Any) -> list[str]:
    return [path for node in nodes for path in (node["step"], *paths(node.get("steps", ())))]


async def test_each_level_of_a_path_is_a_node(bench: Bench) -> None:
    bench.offer("tell", lambda given: given)
    tree = await draw(
        bench,
        """
        name: w
        steps:
          - id: l
            loop: {max: 2}
            steps:
              - id: p
                parallel: {}
                branches:
                  left: [{id: a, skill: tell, with: {n: 1}}]
                  right: [{id: b, skill: tell, with: {n: 2}}]
          - id: s
            switch: "'x'"
            branches: {x: [{id: c, skill: tell, with: {n: 3}}]}
        """,
    )
    assert paths(tree) == [
        "l",
        *("l#1", "l#1.p", "l#1.p.left", "l#1.p.left/a", "l#1.p.right", "l#1.p.right/b"),
        *("l#2", "l#2.p", "l#2.p.left", "l#2.p.left/a", "l#2.p.right", "l#2.p.right/b"),
        *("s", "s.c"),
    ]
    assert {node["status"] for node in tree} == {"done"}
    assert tree[1]["branch"] == "x"


async def test_every_attempt_is_told_with_its_agent_and_its_error(bench: Bench) -> None:
    bench.offer("tell", failing(BusyError("full", 0), then={"n": 1}))
    (node,) = await draw(bench, "name: w\nsteps: [{id: a, skill: tell, retry: {attempts: 2, delay: 1s}}]")
    first, second = node["attempts"]
    assert (first["agent"], first["error"]["type"], "error" in second) == ("tell-agent", "busy", False)
    assert (node["status"], node["output"], "error" in node) == ("done", {"n": 1}, False)


async def test_another_agent_after_an_unreachable_one_is_an_attempt_of_the_same_step(bench: Bench) -> None:
    for name in ("one", "two"):
        bench.offer("tell", {"by": name}, agent=name)
    bench.caller.break_connection("one")
    (node,) = await draw(bench, "name: w\nsteps: [{id: a, skill: tell}]")
    assert [attempt["agent"] for attempt in node["attempts"]] == ["one", "two"]
    assert (node["agent"], node["output"]) == ("two", {"by": "two"})


async def test_a_step_whose_agent_could_not_be_chosen_has_failed_and_says_why(bench: Bench) -> None:
    (node,) = await draw(bench, "name: w\nsteps: [{id: a, skill: nobody}]")
    assert (node["status"], node["error"]["type"]) == ("failed", "skill_not_offered")


async def test_compensations_and_reviews_are_nodes_of_their_own(bench: Bench) -> None:
    bench.offer("tell", lambda given: given)
    bench.offer("ask", "x", agent="a", roles=["execute"])
    bench.offer("ask", "y", agent="b", roles=["execute"])
    bench.offer("judge", "A", roles=["review"], agent="j")
    bench.offer("break", failing(NotAllowedError("no")))
    tree = await draw(
        bench,
        """
        name: w
        steps:
          - {id: a, skill: tell, with: {n: 1}, compensate: {skill: tell, with: {undo: 1}}}
          - {id: v, parallel: {mode: vote, prompt: x}}
          - {id: b, skill: break}
        """,
    )
    undo = next(node for node in tree[0]["steps"] if node["step"] == "a/undo")
    assert (undo["kind"], undo["input"], undo["status"]) == ("undo", {"undo": 1}, "done")
    review = next(node for node in tree[1]["steps"] if node["step"] == "v/review")
    assert (review["kind"], review["agent"]) == ("review", "j")


def event(seq: int, what: Any, step: str, **facts: Any) -> RunEvent:
    return RunEvent(seq, what, "r", step, float(seq), facts)


CALL = {"kind": "call", "skill": "s", "agent": "a"}
LOST = {"type": "agent_unreachable", "data": AgentUnreachableError("a", "u", "reset", sent=True).data}


def test_effects_are_those_that_ended_well_and_those_that_may_have_run() -> None:
    events = [
        event(1, "step_started", "choice/choose", kind="choose"),
        event(2, "step_started", "done", **CALL),
        event(3, "step_finished", "done", **CALL),
        event(4, "step_started", "refused", **CALL),
        event(5, "step_finished", "refused", error={"type": "busy"}, **CALL),
        event(6, "step_started", "late", **CALL),
        event(7, "step_finished", "late", error={"type": "timeout"}, **CALL),
        event(8, "step_started", "lost", **CALL),
        event(9, "step_finished", "lost", error=LOST, **CALL),
        event(10, "step_started", "flying", **CALL),
    ]
    effects = list_effects(events)
    assert [one["step"] for one in effects["done"]] == ["done"]
    assert [one["step"] for one in effects["unknown"]] == ["late", "lost", "flying"]
    assert effects["done"][0] == {"step": "done", "skill": "s", "agent": "a"}


def test_what_was_at_work_when_the_run_was_cancelled_is_cancelled() -> None:
    events = [event(1, "step_started", "l#1.a", **CALL)]
    (node,) = draw_tree(events, ended="cancelled")
    assert (node["step"], node["status"]) == ("l", "cancelled")
    (node,) = draw_tree(events)
    assert node["status"] == "running"


def test_what_a_fork_kept_is_told_as_kept() -> None:
    outcome = StepOutcome({"value": {"n": 1}, "agent": "a", "warnings": []})
    (node,) = draw_tree([], [StepRecord("r", "plan", outcome)], ended="done")
    assert (node["step"], node["status"], node["output"]) == ("plan", "kept", {"n": 1})


async def test_steps_may_be_called_as_what_serves_a_step_is(bench: Bench) -> None:
    bench.offer("tell", lambda given: given)
    names = ("choose", "validate", "clock", "again", "agents", "limit", "cache", "settings", "undo")
    inner = "".join(f"      - {{id: {name}, skill: tell, with: {{n: 1}}}}\n" for name in names)
    settings = "settings: {max_duration: 1h, cache: workflow}"
    parallel = f"steps:\n  - id: p\n    parallel: {{}}\n    steps:\n{inner}"
    tree = await draw(bench, f"name: w\n{settings}\n{parallel}")
    assert paths(tree) == ["p", *(path for name in names for path in (f"p.{name}", f"p.{name}/{name}"))]
    assert all(node["steps"][0]["output"] == {"n": 1} for node in tree[0]["steps"])
    outer = "".join(f"  - {{id: {name}, skill: tell, with: {{n: 1}}}}\n" for name in names)
    record = await bench.run(f"name: w\nsettings: {{max_duration: 1h}}\nsteps:\n{outer}", run_id="outer")
    tree = draw_tree(await bench.events("outer"), await bench.runs.list_steps("outer"), ended=record.status)
    assert paths(tree) == list(names)


async def test_a_refused_answer_is_the_failure_of_its_step(bench: Bench) -> None:
    bench.offer("tell", {"n": 1})
    (node,) = await draw(bench, "name: w\nsteps: [{id: a, skill: tell, validate: steps.a.output.n > 3}]")
    assert (node["status"], node["error"]["type"]) == ("failed", "output_validation_error")


RACE = """
name: w
steps:
  - id: fast
    parallel: {mode: race}
    branches:
      quick: [{id: a, skill: tell, with: {}}]
      late: [{id: b, skill: hang, with: {}}, {id: c, skill: tell, with: {}}]
"""


@pytest.mark.parametrize("after", ["", "  - {id: next, skill: tell}\n", "  - {id: last, skill: break}\n"])
async def test_a_won_race_is_done_and_its_loser_is_cancelled(bench: Bench, after: str) -> None:
    async def hang(_: Any) -> Any:
        await asyncio.Event().wait()

    bench.offer("tell", {"n": 1})
    bench.offer("hang", hang)
    bench.offer("break", failing(NotAllowedError("no")))
    race = (await draw(bench, RACE + after))[0]
    assert race["status"] == "done"
    assert {node["step"]: node["status"] for node in race["steps"]} == {
        "fast.quick": "done",
        "fast.late": "cancelled",
    }
    (loser,) = (node for node in race["steps"] if node["step"] == "fast.late")
    assert [node["status"] for node in loser["steps"]] == ["cancelled"]


def test_a_loser_without_an_end_in_the_events_is_cancelled() -> None:
    events = [
        event(1, "run_started", "r.won"),
        event(2, "run_started", "r.lost"),
        event(3, "step_started", "r.lost/a", **CALL),
        event(4, "run_finished", "r.won", status="done"),
    ]
    (race,) = draw_tree(events, ended="done")
    assert (race["status"], race["steps"][1]["status"]) == ("done", "cancelled")
    assert race["steps"][1]["steps"][0]["status"] == "cancelled"


def test_an_end_without_a_step_is_that_of_the_child_run_with_its_id() -> None:
    events = [
        event(1, "run_started", ""),
        replace(event(2, "run_started", "each#1"), run_id="r/each#1"),
        replace(event(3, "step_started", "each#1/a", **CALL), run_id="r/each#1"),
        replace(event(4, "step_finished", "each#1/a", **CALL), run_id="r/each#1"),
        replace(event(5, "run_finished", "", status="done"), run_id="r/each#1"),
        event(6, "run_finished", "", status="done"),
    ]
    (each,) = draw_tree(events, ended="done")
    assert [node["status"] for node in each["steps"]] == ["done"]


async def test_a_group_whose_failure_was_handled_has_failed_and_its_earlier_rounds_are_done(
    bench: Bench,
) -> None:
    bench.offer("tell", {"n": 1})
    bench.offer("break", failing(NotAllowedError("no"), NotAllowedError("no")))
    loop, after = await draw(
        bench,
        """
        name: w
        steps:
          - id: l
            loop: {max: 3}
            on_error: continue
            steps: [{id: a, skill: tell}, {id: b, skill: break, when: loop.index == 2}]
          - {id: after, skill: tell}
        """,
    )
    assert (loop["status"], loop["handled"], after["status"]) == ("failed", "continue", "done")
    assert [node["status"] for node in loop["steps"]] == ["done", "failed"]


def test_what_is_at_work_again_in_a_run_that_was_resumed_is_not_cancelled() -> None:
    events = [
        event(1, "run_started", "p.x"),
        event(2, "step_started", "p.x/l#1.a", **CALL),
        event(3, "run_finished", "p.x", status="cancelled"),
        event(4, "run_resumed", "p.x"),
        event(5, "step_started", "p.x/l#1.a", **CALL),
        event(6, "step_finished", "p.x/l#1.a", **CALL),
        event(7, "run_finished", "p.x", status="done"),
    ]
    (group,) = draw_tree(events, ended="done")
    assert paths([group]) == ["p", "p.x", "p.x/l", "p.x/l#1", "p.x/l#1.a"]
    assert all(f'"{word}"' not in str(group) for word in ("cancelled", "running"))
    assert group["steps"][0]["steps"][0]["status"] == "done"


UNDO = {"kind": "undo", "skill": "free", "agent": "a"}


def test_effects_tell_what_was_undone_and_what_is_still_to_be_undone() -> None:
    done = [
        event(1, "step_finished", "reserve", **CALL, undo="free"),
        event(2, "step_finished", "charge@2", **CALL, undo="refund", below="@2"),
        event(3, "step_finished", "tell", **CALL),
    ]
    words = ("done", "undone", "to_undo", "unknown")

    def read(events: list[RunEvent]) -> list[list[str]]:
        return [[one["step"] for one in list_effects(events)[word]] for word in words]

    assert read(done) == [["reserve", "charge@2", "tell"], [], [], []]
    waiting = [*done, event(4, "step_started", "charge/undo/choose", kind="choose", serves="undo")]
    assert read(waiting) == [["tell"], [], ["reserve", "charge@2"], []]
    undone = [*waiting, event(5, "step_finished", "charge/undo@2", **UNDO, below="@2")]
    assert read(undone) == [["tell"], ["charge@2"], ["reserve"], []]
    begun = [*undone, event(6, "step_started", "reserve/undo", **UNDO)]
    assert read(begun) == [["tell"], ["charge@2"], ["reserve"], ["reserve/undo"]]


async def test_large_arguments_are_not_repeated_in_the_events_of_each_attempt(bench: Bench) -> None:
    bench.offer("write", {"text": "x" * 70_000})
    bench.offer("count", failing(BusyError("full", 0), then={"n": 1}))
    nodes = await draw(
        bench,
        """
        name: w
        steps:
          - {id: a, skill: write, with: {}}
          - {id: b, skill: count, with: {text: "${{ steps.a.output.text }}"}, retry: {attempts: 2}}
        """,
    )
    assert nodes[1]["input"] == {"omitted": "70,011 bytes", "begins": '{"text":"' + "x" * 191}
    assert bench.arguments[1] == {"text": "x" * 70_000}
    assert sum(len(str(event.facts)) for event in await bench.events("r")) < 10_000
