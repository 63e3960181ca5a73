"""Workflows as the hub's skills over ``/execute``: stored, inline, waited for, followed, cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from retinue.oci.registry import publish_workflow
from tests.doors.office import Office
from tests.requirements import requirement
from tests.system import NOON, WAIT_S

PLAN_TWICE = {
    "name": "plan-twice",
    "description": "Plans a plan",
    "input": {"type": "object", "required": ["requirements"]},
    "steps": [
        {"id": "first", "skill": "create_plan"},
        {"id": "second", "skill": "create_plan", "with": {"requirements": "${{ steps.first.output.plan }}!"}},
    ],
}
WAITING = {"name": "waiting", "steps": [{"id": "long", "skill": "wait"}]}


async def store(office: Office, workflow: Any, name: str | None = None) -> None:
    """Keep a workflow in the registry of the state folder."""
    content = workflow if isinstance(workflow, bytes) else orjson.dumps(workflow)
    await publish_workflow(office.system.home, name or workflow["name"], content, created=NOON)


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "inline"])
@pytest.mark.parametrize("way", ["call_skill", "orchestrate_workflow", "start_run"])
async def test_no_way_through_the_hub_gives_a_stranger_the_right_to_run_code(
    office: Office, way: str, stored: bool
) -> None:
    """A workflow has the scope ``runs_code`` only if its starter has it."""
    workflow = {"name": "running", "steps": [{"id": "run", "skill": "run_code", "with": {"code": "1"}}]}
    await store(office, workflow)
    arguments: dict[str, Any] = {"workflow": "running" if stored else workflow, "input": {}}
    if way == "call_skill":
        arguments = {"skill": "run_code", "arguments": {"code": "1"}}
    refused = await office.ask(way, arguments)
    if way == "start_run":
        assert (await office.follow(refused.result["run"]))["status"] == "failed"
    else:
        assert b"not_authenticated" in refused.body
    assert office.bench.ran == []
    allowed = await office.ask(way, arguments, authorization=office.system.token)
    if way == "start_run":
        await office.follow(allowed.result["run"], authorization=office.system.token)
    assert "error" not in allowed.json
    assert office.bench.ran == ["run_code"]


@requirement("P-29")
async def test_a_stored_workflow_is_listed_and_runs_by_its_name(office: Office) -> None:
    """As ``workflows/<name>`` in the registry; a broken one is listed with what is wrong with it."""
    await store(office, PLAN_TWICE)
    await store(office, b"name: broken\nsteps: []\n", "broken")
    listed = await office.get("list_workflows", {"filter": "custom", "detailed": True})
    broken, plan_twice = listed["workflows"]
    assert (broken["name"], broken["origin"]) == ("broken", "custom")
    assert "workflows/broken:v1" in broken["error"]
    definition = plan_twice.pop("definition")
    assert plan_twice == {
        "name": "plan-twice",
        "origin": "custom",
        "description": "Plans a plan",
        "steps": 2,
        "skills": ["create_plan"],
    }
    assert definition == PLAN_TWICE
    assert not any("origin" in one for one in (await office.get("list_workflows"))["workflows"][:-2])
    arguments = {"workflow": "plan-twice", "input": {"requirements": "x"}, "run": "my-run"}
    reply = await office.get("orchestrate_workflow", arguments)
    assert (reply["run"], reply["workflow"], reply["output"]) == ("my-run", "plan-twice", {"plan": "x!"})


async def test_a_workflow_that_cannot_start_says_why(office: Office) -> None:
    """An unknown name, a wrong definition, an input that breaks its schema."""
    for workflow, given, words in (
        ("plan-twoce", {}, "Unknown workflow: plan-twoce"),
        ({"name": "x", "steps": [{"id": "a", "skil": "b"}]}, {}, "skil"),
        (PLAN_TWICE, {}, "Invalid parameters: missing required field 'requirements'"),
    ):
        for way in ("orchestrate_workflow", "start_run"):
            reply = await office.ask(way, {"workflow": workflow, "input": given})
            assert words in reply.error["message"]
    assert office.bench.ran == []


async def test_a_failed_step_is_named_with_its_agent_and_the_cause(office: Office) -> None:
    """The same by waiting and by following."""
    workflow = {"name": "failing", "steps": [{"id": "bad", "skill": "fail"}]}
    reply = await office.ask("orchestrate_workflow", {"workflow": workflow, "input": {}})
    assert (reply.error["code"], reply.error["data"]["type"]) == (-32603, "step_failed")
    for words in ("bad", "bench-agent", "the first line"):
        assert words in reply.error["message"]
    run = (await office.get("start_run", {"workflow": workflow}))["run"]
    last = await office.follow(run)
    assert (last["status"], last["error"]["type"]) == ("failed", "step_failed")
    assert "output" not in last


async def test_a_run_can_be_started_followed_and_asked_again(office: Office) -> None:
    """Each event once, in order; the output with the last."""
    await store(office, PLAN_TWICE)
    arguments = {"workflow": "plan-twice", "input": {"requirements": "x"}}
    started = await office.get("start_run", arguments)
    assert started["workflow"] == "plan-twice"
    events, after, done = [], 0, False
    while not done:
        reply = await office.get("follow_run", {"run": started["run"], "after": after})
        assert [event["seq"] for event in reply["events"]] == list(range(after + 1, reply["next"] + 1))
        events += reply["events"]
        after, done = reply["next"], reply["done"]
    assert (reply["status"], reply["output"]) == ("done", {"plan": "x!"})
    calls = [one for one in events if one["event"] == "step_finished" and one["kind"] == "call"]
    assert [(one["step"], one["skill"], one["agent"]) for one in calls] == [
        ("first", "create_plan", "bench-agent"),
        ("second", "create_plan", "bench-agent"),
    ]
    assert all(one["duration_ms"] >= 0 for one in calls)
    again = await office.get("follow_run", {"run": started["run"], "after": after})
    assert (again["events"], again["done"], again["output"]) == ([], True, {"plan": "x!"})


async def test_a_run_id_is_an_idempotency_key(office: Office) -> None:
    """The same request gives the first run, another one a conflict."""
    arguments = {"workflow": PLAN_TWICE, "input": {"requirements": "x"}, "run": "once"}
    first = await office.get("orchestrate_workflow", arguments)
    again = await office.get("orchestrate_workflow", arguments)
    assert again["output"] == first["output"]
    assert (await office.get("start_run", arguments))["run"] == "once"
    assert office.bench.ran == ["create_plan", "create_plan"]
    other = await office.ask("start_run", {**arguments, "input": {"requirements": "y"}})
    assert (other.error["code"], other.error["data"]["type"]) == (-33010, "run_conflict")


async def test_of_three_clients_with_one_run_id_at_once_each_gets_the_same_run(office: Office) -> None:
    arguments = {"workflow": PLAN_TWICE, "input": {"requirements": "x"}, "run": "once"}
    replies = await asyncio.gather(*(office.get("orchestrate_workflow", arguments) for _ in range(3)))
    assert [reply["output"] for reply in replies] == [{"plan": "x!"}] * 3
    assert office.bench.ran == ["create_plan", "create_plan"]


async def test_following_waits_only_until_something_happens(office: Office) -> None:
    """A long poll comes back with the event, not at its end; without one at its end, empty."""
    run = (await office.get("start_run", {"workflow": WAITING}))["run"]
    async with asyncio.timeout(WAIT_S):
        await office.bench.waiting.wait()
    seen = await office.get("follow_run", {"run": run})
    after = seen["next"]
    quiet = await office.get("follow_run", {"run": run, "after": after, "wait_s": 0.05})
    assert quiet == {"events": [], "next": after, "done": False, "status": "running"}
    # far longer than the test may take: only the event can end it
    waiting = asyncio.ensure_future(office.get("follow_run", {"run": run, "after": after, "wait_s": 25}))
    await office.get("cancel_run", {"run": run})
    async with asyncio.timeout(WAIT_S):
        reply = await waiting
    assert reply["events"]


async def test_cancelling_a_run_stops_the_call_in_flight(office: Office) -> None:
    """All the way to the skill in the agent's process; an ended run stays as it is."""
    run = (await office.get("start_run", {"workflow": WAITING}))["run"]
    async with asyncio.timeout(WAIT_S):
        await office.bench.waiting.wait()
        told = await office.get("cancel_run", {"run": run})
        await office.bench.cancelled.wait()
    in_flight = {"step": "long", "skill": "wait", "agent": "bench-agent"}
    assert told == {
        "run": run,
        "status": "cancelled",
        "effects": {"done": [], "undone": [], "to_undo": [], "unknown": [in_flight]},
    }
    last = await office.follow(run)
    assert (last["status"], last["events"][-1]["event"]) == ("cancelled", "run_finished")
    assert last["effects"] == told["effects"]
    assert await office.get("cancel_run", {"run": run}) == told


async def leave_waiting(office: Office, arguments: dict[str, Any]) -> None:
    """Ask for a workflow, and go as soon as its skill waits."""
    pending = asyncio.ensure_future(office.ask("orchestrate_workflow", arguments))
    async with asyncio.timeout(WAIT_S):
        await office.bench.waiting.wait()
    pending.cancel()


async def test_whoever_leaves_a_workflow_that_he_waits_for_ends_it(office: Office) -> None:
    """Nobody works for nobody."""
    await leave_waiting(office, {"workflow": WAITING, "input": {}})
    async with asyncio.timeout(WAIT_S):
        await office.bench.cancelled.wait()
    (run,) = (await office.get("list_runs"))["runs"]
    assert (await office.follow(run["run"]))["status"] == "cancelled"


async def test_a_workflow_with_a_run_id_survives_whoever_waits_for_it(office: Office) -> None:
    """The same call picks it up (specification 7.13)."""
    arguments = {"workflow": WAITING, "input": {}, "run": "kept"}
    await leave_waiting(office, arguments)
    again = asyncio.ensure_future(office.ask("orchestrate_workflow", arguments))
    (run,) = (await office.get("list_runs"))["runs"]
    assert (run["run"], run["status"]) == ("kept", "running")
    assert not office.bench.cancelled.is_set()
    await office.get("cancel_run", {"run": "kept"})
    async with asyncio.timeout(WAIT_S):
        assert (await again).error["data"]["type"] == "cancelled"


@pytest.mark.parametrize("skill", ["follow_run", "cancel_run"])
async def test_an_unknown_run_is_said_to_be_unknown(office: Office, skill: str) -> None:
    """With what to do about it."""
    reply = await office.ask(skill, {"run": "never"})
    assert "Unknown run: never" in reply.error["message"]
    assert reply.error["data"]["type"] == "unknown_run"


async def test_a_small_workflow_gives_no_output_of_hundreds_of_megabytes(office: Office) -> None:
    """Each of 300 keys would repeat the input: the run fails at the third, with a short answer."""
    output = {f"k{number}": "${{ input.s }}" for number in range(300)}
    workflow = {"name": "many", "steps": [{"id": "a", "skill": "create_plan"}], "output": output}
    given = {"s": "a" * 3_000_000, "requirements": "x"}
    reply = await office.ask("orchestrate_workflow", {"workflow": workflow, "input": given})
    assert "with it at output.k2 the value has 9,000,0" in reply.error["message"]
    assert "at most 8,388,608" in reply.error["message"]
    assert len(reply.body) < 5_000
