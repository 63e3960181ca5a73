"""What the hub itself offers over ``/execute``: the directory, and calls through it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from retinue.authoring.agent import Agent
from retinue.core.errors import StateDamagedError
from retinue.storage.state import State
from tests.doors.bench import Bench
from tests.doors.office import Office
from tests.requirements import requirement
from tests.system import Wire, open_system

DEAD = "http://127.0.0.1:9"


@pytest.fixture
async def half_blind(retinue_home: Path, wire: Wire) -> AsyncIterator[Office]:
    """An office with a second registry that nobody answers for."""
    async with open_system(State(retinue_home), registries=(DEAD,)) as system:
        bench = Bench()
        served = await system.start_agent(bench.agent)
        yield Office(bench, served, await system.start_hub(), system, wire)


async def test_list_agents_tells_of_each_what_it_offers_and_where_it_is(office: Office) -> None:
    """Private skills are in no row."""
    reply = await office.get("list_agents", {"detailed": True})
    (row,) = reply["agents"]
    assert reply["missing"] == []
    digest = row.pop("digest")
    assert digest.startswith("sha256:")
    skills = [skill.id for skill in office.bench.agent.skills if skill.visibility != "private"]
    assert row == {
        "name": "bench-agent",
        "status": "unknown",
        "health": "unknown",
        "reason": "it was neither called nor probed yet",
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
    (row,) = (await office.get("list_agents", {"detailed": True}))["agents"]
    assert row["status"] == "available"
    await office.served.stop()
    lost = await office.ask("create_plan", {"requirements": "x"})
    assert lost.error["data"]["type"] == "agent_unreachable"
    (row,) = (await office.get("list_agents", {"detailed": True}))["agents"]
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


async def test_agents_with_a_role_come_in_pages_too(office: Office) -> None:
    """The highest score first, also across pages."""
    for name, score in (("low", 0.2), ("high", 0.9), ("middle", 0.5)):
        planner = Agent(name, scores={"planning": score})
        planner.skill("plan", roles=["plan"])(_plan)
        await office.system.start_agent(planner)
    names: list[str] = []
    asked: dict[str, Any] = {"role": "planning", "limit": 2}
    while True:
        reply = await office.get("list_agents", asked)
        names += [row["name"] for row in reply["agents"]]
        if "next" not in reply:
            break
        asked["after"] = reply["next"]
    assert names == ["high", "middle", "low"]


async def _plan() -> str:
    return "a plan"


async def test_list_agents_gives_a_page_and_where_to_go_on(office: Office) -> None:
    for name in ("alpha", "omega"):
        await office.system.start_agent(Agent(name))
    names: list[str] = []
    after: dict[str, str] = {}
    for _ in range(3):
        reply = await office.get("list_agents", {"limit": 1, **after})
        (row,) = reply["agents"]
        names.append(row["name"])
        after = {"after": reply.get("next")}
    assert names == ["alpha", "bench-agent", "omega"]
    assert "next" not in reply
    refused = await office.ask("list_agents", {"after": "nowhere"})
    assert "not a place in the list" in refused.error["message"]


async def test_list_agents_ranks_them_by_words(office: Office) -> None:
    """By all that an agent offers; one that shares no word is left out, and so is one without the role."""
    travel = Agent("travel", description="Everything about journeys")
    kite = Agent("kite")

    @travel.skill(roles=["execute"])
    async def flights() -> str:
        """Finds flights"""
        return ""

    @travel.skill
    async def hotels() -> str:
        """Finds hotels near a flight"""
        return ""

    @kite.skill
    async def fly() -> str:
        """Flights of a kite"""
        return ""

    for agent in (kite, travel):
        await office.system.start_agent(agent)
    wanted = {"query": "flights and hotels for my journey"}
    assert [row["name"] for row in (await office.get("list_agents", wanted))["agents"]] == ["travel", "kite"]
    (only,) = (await office.get("list_agents", {**wanted, "role": "execute"}))["agents"]
    assert only["name"] == "travel"
    assert (await office.get("list_agents", {"query": "zzzz"}))["agents"] == []


async def test_a_registry_that_cannot_be_asked_is_named_in_every_list(half_blind: Office) -> None:
    """One dead source never empties a list; the reply names it."""
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
        "call": "create_plan(requirements: string)",
        "version": "1.0.0",
    }
    detailed = (await office.get("find_skills", {"query": "create a plan", "detailed": True}))["skills"]
    assert detailed[0] == {
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


@pytest.mark.parametrize("read_whole", [500, 1])
async def test_without_a_text_index_the_search_goes_on_and_says_so(
    office: Office, monkeypatch: pytest.MonkeyPatch, read_whole: int
) -> None:
    """Of many agents only those are read whose name, or skills, have a word of the query."""
    monkeypatch.setattr("retinue.hub.search._MAX_UNINDEXED", read_whole)
    await office.system.start_agent(Agent("other"))

    def fail(*_: object, **__: object) -> None:
        raise StateDamagedError("retinue.db", "malformed", remedy="move it away")

    monkeypatch.setattr(office.hub.mesh.search, "find_skills", fail)
    reply = await office.get("find_skills", {"query": "create a plan"})
    assert reply["skills"][0]["skill"] == "create_plan"
    assert "malformed" in reply["warning"]


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
    (row,) = (await office.get("list_agents", {"detailed": True}))["agents"]
    assert shown["listing"].items() <= row.items()
    unknown = await office.ask("show_agent", {"name": "bench-agnet"})
    assert unknown.error["message"] == "Unknown agent: bench-agnet"
    assert "bench-agent" in unknown.error["data"]["remedy"]


async def test_call_skill_gives_the_value_and_keeps_the_agents_own_errors(office: Office) -> None:
    """Found by skill, under the caller's rights; code, message and data pass through."""
    value = await office.get("call_skill", {"skill": "create_plan", "arguments": {"requirements": "x"}})
    assert value == {"plan": "x"}
    for skill in ("fail", "create_plan", "zz_secret", "nobody_has_it"):
        relayed = await office.ask("call_skill", {"skill": skill, "arguments": {}})
        direct = await office.ask(skill, {})
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
    assert (await office.wire.get(f"{office.hub.url}/agents/late-agent/agent-card")).json[
        "name"
    ] == "late-agent"
    assert await office.get("come_late") == "here"


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
