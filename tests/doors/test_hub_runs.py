"""Runs as the hub's skills over ``/execute``: listed, shown as trees, stopped, gone on with, repeated."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.doors.office import Office
from tests.requirements import requirement
from tests.system import WAIT_S

FLOW = {
    "name": "flow",
    "steps": [
        {"id": "plan", "skill": "create_plan", "with": {"requirements": "x"}},
        {"id": "bad", "skill": "fail", "retry": {"attempts": 2, "delay": "1ms"}, "on_error": "continue"},
        {
            "id": "each",
            "foreach": {"in": ["a", "b"], "concurrency": 1},
            "steps": [{"id": "one", "skill": "create_plan", "with": {"requirements": "${{ loop.item }}"}}],
        },
        {"id": "skipped", "skill": "wait", "when": "input.go"},
    ],
}
THEN_WAITS = {
    "name": "then-waits",
    "steps": [
        {"id": "plan", "skill": "create_plan", "with": {"requirements": "x"}},
        {"id": "long", "skill": "wait"},
    ],
}


async def run_flow(office: Office, run: str) -> Any:
    arguments = {"workflow": FLOW, "input": {"go": False}, "run": run}
    return (await office.get("orchestrate_workflow", arguments))["output"]


@requirement("L-35")
async def test_a_run_is_shown_as_a_tree_with_attempts_agents_times_inputs_outputs_and_errors(
    office: Office,
) -> None:
    assert await run_flow(office, "r") == [{"plan": "a"}, {"plan": "b"}]
    shown = await office.get("show_run", {"run": "r"})
    assert (shown["run"], shown["workflow"], shown["status"]) == ("r", "flow", "done")
    assert shown["input"] == {"go": False}
    plan, bad, each, skipped = shown["steps"]
    assert (plan["step"], plan["status"], plan["skill"], plan["agent"]) == (
        "plan",
        "done",
        "create_plan",
        "bench-agent",
    )
    assert (plan["input"], plan["output"]) == ({"requirements": "x"}, {"plan": "x"})
    assert plan["duration_ms"] > 0
    assert plan["started_at"] >= shown["started_at"]
    assert (bad["status"], bad["handled"], len(bad["attempts"])) == ("failed", "continue", 2)
    assert bad["error"]["message"] == bad["attempts"][0]["error"]["message"]
    assert [item["step"] for item in each["steps"]] == ["each#1", "each#2"]
    assert each["steps"][1]["steps"][0]["step"] == "each#2/one"
    assert each["steps"][1]["steps"][0]["output"] == {"plan": "b"}
    assert skipped["status"] == "skipped"
    done = [one["step"] for one in shown["effects"]["done"]]
    assert done == ["plan", "each#1/one", "each#2/one"]


async def test_the_tree_of_equal_runs_has_equal_paths(office: Office) -> None:
    def paths(nodes: Any) -> list[str]:
        return [p for node in nodes for p in (node["step"], *paths(node.get("steps", ())))]

    for run in ("one", "two"):
        await run_flow(office, run)
    one, two = [(await office.get("show_run", {"run": run}))["steps"] for run in ("one", "two")]
    assert paths(one) == paths(two)


async def test_runs_are_listed_newest_first_and_filtered(office: Office) -> None:
    await run_flow(office, "old")
    await run_flow(office, "new")
    await office.ask(
        "orchestrate_workflow",
        {"workflow": {"name": "bad", "steps": [{"id": "a", "skill": "fail"}]}, "input": {}, "run": "bad"},
    )
    listed = (await office.get("list_runs"))["runs"]
    assert [(row["run"], row["status"]) for row in listed] == [
        ("bad", "failed"),
        ("new", "done"),
        ("old", "done"),
    ]
    assert all(row["duration_ms"] > 0 for row in listed)
    for filters, runs in (
        ({"status": "done"}, ["new", "old"]),
        ({"workflow": "bad"}, ["bad"]),
        ({"limit": 1}, ["bad"]),
        ({"status": "running"}, []),
    ):
        assert [row["run"] for row in (await office.get("list_runs", filters))["runs"]] == runs


async def test_a_cancelled_run_says_what_had_happened_and_goes_on_where_it_stopped(office: Office) -> None:
    run = (await office.get("start_run", {"workflow": THEN_WAITS}))["run"]
    async with asyncio.timeout(WAIT_S):
        await office.bench.waiting.wait()
        told = await office.get("cancel_run", {"run": run})
        await office.bench.cancelled.wait()
    assert [one["step"] for one in told["effects"]["done"]] == ["plan"]
    assert [one["step"] for one in told["effects"]["unknown"]] == ["long"]
    shown = await office.get("show_run", {"run": run})
    assert [(node["step"], node["status"]) for node in shown["steps"]] == [
        ("plan", "done"),
        ("long", "cancelled"),
    ]
    office.bench.waiting.clear()
    resumed = await office.get("resume_run", {"run": run})
    assert (resumed["run"], resumed["status"]) == (run, "running")
    news = await office.get("follow_run", {"run": run, "after": resumed["after"]})
    assert news["events"][0]["event"] == "run_resumed"
    async with asyncio.timeout(WAIT_S):
        await office.bench.waiting.wait()
        await office.get("cancel_run", {"run": run})
    assert office.bench.ran == ["create_plan"]


async def test_a_run_is_repeated_from_a_step_on(office: Office) -> None:
    await run_flow(office, "r")
    again = await office.get("rerun_run", {"run": "r", "from_step": "each", "new_run": "again"})
    assert again == {"run": "again", "workflow": "flow", "from": "r"}
    assert (await office.follow("again"))["output"] == [{"plan": "a"}, {"plan": "b"}]
    assert office.bench.ran == ["create_plan"] * 5
    shown = await office.get("show_run", {"run": "again"})
    assert shown["forked_from"] == "r"
    plan = next(node for node in shown["steps"] if node["step"] == "plan")
    assert (plan["status"], plan["output"]) == ("kept", {"plan": "x"})
    refused = await office.ask("rerun_run", {"run": "r", "from_step": "eech"})
    assert refused.error["data"]["type"] == "unknown_step"


@pytest.mark.parametrize(
    ("skill", "more"),
    [
        ("show_run", {}),
        ("resume_run", {}),
        ("extend_run", {"limits": {"turns": 30}}),
        ("rerun_run", {"from_step": "a"}),
        ("signal_run", {"topic": "t"}),
    ],
)
async def test_an_unknown_run_is_said_to_be_unknown(office: Office, skill: str, more: Any) -> None:
    reply = await office.ask(skill, {"run": "never", **more})
    assert reply.error["data"]["type"] == "unknown_run"


async def test_a_signal_to_a_run_that_has_ended_is_refused(office: Office) -> None:
    await run_flow(office, "r")
    reply = await office.ask("signal_run", {"run": "r", "topic": "go", "value": True})
    assert "Run r has ended: done" in reply.error["message"]


async def test_a_signal_can_come_before_the_step_that_waits_for_it(office: Office) -> None:
    workflow = {
        "name": "early",
        "steps": [{"id": "long", "skill": "hang", "on_error": "continue"}, {"id": "go", "wait_for": "go"}],
    }
    await office.get("start_run", {"workflow": workflow, "run": "r"})
    async with asyncio.timeout(WAIT_S):
        await office.bench.waiting.wait()
    given = await office.get("signal_run", {"run": "r", "topic": "go", "value": 7})
    assert given["step"] is None
    assert (await office.follow("r"))["output"] == 7
