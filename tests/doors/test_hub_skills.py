"""What the hub itself offers over ``/execute``: the directory, calls through it, and workflows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from retinue.authoring.agent import Agent
from retinue.drivers.registry import publish_workflow
from retinue.drivers.state import State
from tests.doors.bench import Bench
from tests.requirements import requirement
from tests.system import NOON, WAIT_S, Hub, Reply, Served, System, Wire, open_system

DEAD = "http://127.0.0.1:9"
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


@dataclass(frozen=True, slots=True)
class Office:
    """A hub, the bench agent behind it, and a client of the hub's own skills."""

    bench: Bench
    served: Served
    hub: Hub
    system: System
    wire: Wire

    async def ask(self, skill: str, arguments: Any = None, **headers: str) -> Reply:
        return await self.wire.call(self.hub.url, skill, arguments, **headers)

    async def get(self, skill: str, arguments: Any = None, **headers: str) -> Any:
        return (await self.ask(skill, arguments, **headers)).result

    async def follow(self, run: str, after: int = 0) -> Any:
        """The last word about a run."""
        while True:
            reply = await self.get("follow_run", {"run": run, "after": after})
            after = reply["next"]
            if reply["done"]:
                return reply


@pytest.fixture
async def office(system: System, wire: Wire) -> Office:
    bench = Bench()
    served = await system.start_agent(bench.agent)
    return Office(bench, served, await system.start_hub(), system, wire)


@pytest.fixture
async def half_blind(retinue_home: Path, wire: Wire) -> AsyncIterator[Office]:
    """An office with a second registry that nobody answers for."""
    async with open_system(State(retinue_home), registries=(DEAD,)) as system:
        bench = Bench()
        served = await system.start_agent(bench.agent)
        yield Office(bench, served, await system.start_hub(), system, wire)


async def store(office: Office, workflow: Any, name: str | None = None) -> None:
    """Keep a workflow in the registry of the state folder."""
    content = workflow if isinstance(workflow, bytes) else orjson.dumps(workflow)
    await publish_workflow(office.system.home, name or workflow["name"], content, created=NOON)


async def test_list_agents_tells_of_each_what_it_offers_and_where_it_is(office: Office) -> None:
    """Private skills are in no row."""
    reply = await office.get("list_agents")
    (row,) = reply["agents"]
    assert reply["missing"] == []
    digest = row.pop("digest")
    assert digest.startswith("sha256:")
    skills = [skill.id for skill in office.bench.agent.skills if skill.visibility != "private"]
    assert row == {
        "name": "bench-agent",
        "status": "unknown",
        "version": "1.0.0",
        "description": "",
        "skills": skills,
        "url": office.served.url,
        "source": "home",
        "reference": "agents/bench:v1",
    }


@requirement("P-19")
async def test_list_agents_shows_who_answers_and_since_when_one_does_not(office: Office) -> None:
    """A dead agent stays in the list, with the time and the reason."""
    await office.get("create_plan", {"requirements": "x"})
    (row,) = (await office.get("list_agents"))["agents"]
    assert row["status"] == "available"
    await office.served.stop()
    lost = await office.ask("create_plan", {"requirements": "x"})
    assert lost.error["data"]["type"] == "agent_unreachable"
    (row,) = (await office.get("list_agents"))["agents"]
    assert row["status"] == "unavailable"
    assert office.served.url in row["last_error"]
    assert row["since"].endswith("+00:00")


async def test_list_agents_keeps_those_with_a_role(office: Office) -> None:
    """A role is a skill of that id, or one that names it."""
    planner = Agent("planner")

    @planner.skill(roles=["plan"])
    async def think() -> str:
        return "thought"

    await office.system.start_agent(planner)
    rows = (await office.get("list_agents", {"role": "plan"}))["agents"]
    assert [row["name"] for row in rows] == ["planner"]


async def test_a_registry_that_cannot_be_asked_is_named_in_every_list(half_blind: Office) -> None:
    """DESIGN 7: one dead source never empties a list; what is missing is said, in-band."""
    for skill in ("list_agents", "find_skills", "refresh_agents"):
        reply = await half_blind.get(skill)
        (missing,) = reply["missing"]
        assert (missing["source"], missing["key"]) == (DEAD, None)
        assert DEAD in missing["error"]
        assert reply.get("agents") != []
    unknown = await half_blind.ask("find_skills", {"skill": "nobody_has_it"})
    assert unknown.error["data"]["registries_not_asked"] == [DEAD]


async def test_find_skills_finds_by_words_by_id_by_agent_and_by_version(office: Office) -> None:
    """One row for each skill of each agent, best first; a private one for nobody."""
    rows = (await office.get("find_skills", {"query": "create a plan"}))["skills"]
    assert rows[0] == {
        "agent": "bench-agent",
        "skill": "create_plan",
        "description": "",
        "version": "1.0.0",
        "tags": [],
        "status": "unknown",
        "url": office.served.url,
        "input_schema": office.bench.agent.record().find_skill("create_plan").input_schema,  # type: ignore[union-attr]
    }
    by_id = await office.get("find_skills", {"skill": "create_plan", "version": ">=1,<2"})
    assert [row["skill"] for row in by_id["skills"]] == ["create_plan"]
    by_agent = await office.get("find_skills", {"agent": "bench-agent", "limit": 2})
    assert (len(by_agent["skills"]), by_agent["more"]) == (2, len(office.bench.agent.skills) - 3)
    everything = await office.ask("find_skills", {"query": "zz_secret"}, authorization=office.system.token)
    assert b"zz_secret" not in everything.body


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"skill": "create_plans"}, "skill_not_offered"),
        ({"skill": "create_plan", "agent": "nobody"}, "unknown_agent"),
        ({"skill": "hang", "agent": "retinue"}, "unknown_agent"),
        ({"skill": "create_plan", "version": ">=2"}, "version_conflict"),
        ({"skill": "zz_secret"}, "skill_not_offered"),
    ],
)
@requirement("P-01")
async def test_who_is_not_found_is_an_error_that_says_why(
    office: Office, arguments: dict[str, str], kind: str
) -> None:
    """The near ones are named, and the versions that there are."""
    reply = await office.ask("find_skills", arguments)
    assert (reply.error["code"], reply.error["data"]["type"]) == (-32601, kind)
    if kind == "version_conflict":
        assert reply.error["data"]["offered"] == ["1.0.0"]
    if arguments["skill"] == "create_plans":
        assert reply.error["data"]["near"] == ["create_plan"]


async def test_show_agent_gives_the_card_as_the_agent_serves_it(office: Office) -> None:
    """P-20 at the hub; the row beside it is that of ``list_agents``."""
    shown = await office.get("show_agent", {"name": "bench-agent"})
    assert shown["card"] == (await office.wire.get(f"{office.served.url}/agent-card")).json
    assert [shown["listing"]] == (await office.get("list_agents"))["agents"]
    unknown = await office.ask("show_agent", {"name": "bench-agnet"})
    assert unknown.error["message"] == "Unknown agent: bench-agnet"
    assert "bench-agent" in unknown.error["data"]["remedy"]


async def test_call_skill_gives_the_value_and_keeps_the_agents_own_errors(office: Office) -> None:
    """Found by skill, under the caller's rights; code, message and data pass through."""
    value = await office.get("call_skill", {"skill": "create_plan", "arguments": {"requirements": "x"}})
    assert value == {"plan": "x"}
    for skill, arguments in (("fail", {}), ("create_plan", {}), ("zz_secret", {}), ("nobody_has_it", {})):
        relayed = await office.ask("call_skill", {"skill": skill, "arguments": arguments})
        direct = await office.ask(skill, arguments)
        assert relayed.body == direct.body


@requirement("P-17")
async def test_an_agent_published_meanwhile_is_found_without_a_word_to_the_hub(office: Office) -> None:
    """The registry is the source of truth: also for the card that the hub gives."""
    await office.get("list_agents")
    late = Agent("late-agent")

    @late.skill
    async def come_late() -> str:
        return "here"

    await office.system.start_agent(late)
    assert (await office.wire.get(f"{office.hub.url}/agents/late-agent/agent-card")).json["name"] == "late-agent"
    assert await office.get("come_late") == "here"


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "inline"])
@pytest.mark.parametrize("way", ["call_skill", "orchestrate_workflow", "start_run"])
async def test_no_way_through_the_hub_gives_a_stranger_the_right_to_run_code(
    office: Office, way: str, stored: bool
) -> None:
    """DESIGN 7, ``runs_code``: a workflow has no more of that right than whoever started it."""
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
        await office.follow(allowed.result["run"])
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
    assert all(one["origin"] == "built-in" for one in (await office.get("list_workflows"))["workflows"][:-2])
    arguments = {"workflow": "plan-twice", "input": {"requirements": "x"}, "run": "my-run"}
    reply = await office.get("orchestrate_workflow", arguments)
    assert reply == {"run": "my-run", "workflow": "plan-twice", "output": {"plan": "x!"}}


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
    assert await office.get("orchestrate_workflow", arguments) == first
    assert (await office.get("start_run", arguments))["run"] == "once"
    assert office.bench.ran == ["create_plan", "create_plan"]
    other = await office.ask("start_run", {**arguments, "input": {"requirements": "y"}})
    assert (other.error["code"], other.error["data"]["type"]) == (-33010, "run_conflict")


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
        assert await office.get("cancel_run", {"run": run}) == {"run": run, "status": "cancelled"}
        await office.bench.cancelled.wait()
    last = await office.follow(run)
    assert (last["status"], last["events"][-1]["event"]) == ("cancelled", "run_finished")
    assert await office.get("cancel_run", {"run": run}) == {"run": run, "status": "cancelled"}


async def test_whoever_leaves_a_workflow_that_he_waits_for_ends_it(office: Office) -> None:
    """Nobody works for nobody."""
    arguments = {"workflow": WAITING, "input": {}, "run": "left"}
    pending = asyncio.ensure_future(office.ask("orchestrate_workflow", arguments))
    async with asyncio.timeout(WAIT_S):
        await office.bench.waiting.wait()
        pending.cancel()
        await office.bench.cancelled.wait()
    assert (await office.follow("left"))["status"] == "cancelled"


@pytest.mark.parametrize("skill", ["follow_run", "cancel_run"])
async def test_an_unknown_run_is_said_to_be_unknown(office: Office, skill: str) -> None:
    """With what to do about it."""
    reply = await office.ask(skill, {"run": "never"})
    assert "Unknown run: never" in reply.error["message"]
    assert reply.error["data"]["type"] == "unknown_run"


async def test_refresh_agents_counts_what_is_there_now(office: Office) -> None:
    """A card taken away is gone at the next reading."""
    assert await office.get("refresh_agents") == {"agents": 1, "missing": []}
    await office.system.home.delete("agents/bench", "v1")
    assert await office.get("refresh_agents") == {"agents": 0, "missing": []}
    assert (await office.ask("create_plan", {"requirements": "x"})).error["code"] == -32601


@requirement("P-26")
async def test_every_call_leaves_a_row_in_the_audit_log(office: Office) -> None:
    """Who, what, which agent, how it ended, how long; never arguments or results of a call that ended."""
    await office.get("create_plan", {"requirements": "a secret wish"})
    await office.ask("fail", {}, x_openstarry_trace_id="abc")
    ended = [row for row in office.hub.audit.recent(10) if row["type"] == "CALL:ENDED"]
    by_skill = {row["skill"]: row for row in ended}
    row = by_skill["create_plan"]
    assert (row["agent"], row["status"], row["door"], row["caller"]) == (
        "bench-agent",
        "done",
        "execute",
        "anonymous",
    )
    assert row["duration_ms"] > 0
    assert "a secret wish" not in orjson.dumps(ended).decode()
    assert (by_skill["fail"]["status"], by_skill["fail"]["trace_id"]) == ("failed", "abc")
