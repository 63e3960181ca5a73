"""Seed 001's pipeline over real sockets: Plan → Build → Test through a hub (exchanges 1-4, 1-7, 1-11).

Every message is written down on its way: what the hub asks of the registry, and of each agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from retinue.oci.registry import Registry, open_registry
from retinue.storage.state import State
from retinue.web.http_client import HttpClient
from tests.recording import Arrow, Recording, relay_to
from tests.requirements import requirement
from tests.seeds.seed_001 import (
    CANONICAL,
    CODE,
    FEEDBACK,
    IDEA,
    PLAN,
    RESULT,
    REVIEW,
    SEED_SPELLING,
    Answer,
    list_team,
    plan_agent,
)
from tests.services import docker_registry
from tests.serving import serve_app
from tests.system import Hub, Served, System, Wire, open_system

AGENTS = ("plan-agent", "build-agent", "test-agent")
PARAMS = [
    ("create_plan", {"requirements": IDEA}),
    ("generate_code", {"plan": PLAN}),
    ("review_code", {"code": CODE}),
]
ANSWERS = [{"plan": PLAN}, {"code": CODE}, {"review": REVIEW, "feedback": FEEDBACK}]
MANIFEST = "manifest of agents/{}:v1"


@dataclass(frozen=True, slots=True)
class Team:
    """The seed's three agents behind a hub that finds them in a docker-registry."""

    system: System
    hub: Hub
    registry: Registry
    plan_agent: Served
    recording: Recording

    async def orchestrate(self, wire: Wire, workflow: Any) -> Any:
        arguments = {"workflow": workflow, "input": {"requirements": IDEA}}
        return (await wire.call(self.hub.url, "orchestrate_workflow", arguments)).result

    def arrows(self) -> list[tuple[str, str, str]]:
        """(direction, to, what) of all that passed, in the order of the wire."""
        return [(way, one.to, _tell((way, one))) for way, one in self.recording.arrows if one.to != "hub"]


def _tell(arrow: Arrow) -> str:
    way, one = arrow
    path = one.path
    if one.method == "POST":
        return str(one.request["method"] if way == "->" else sorted(one.answer["result"]))
    if path.startswith("/v2/_catalog"):
        return "catalog" if way == "->" else str(one.answer["repositories"])
    repository, _, rest = path.removeprefix("/v2/").rpartition("/")
    if repository.endswith("/manifests"):
        return f"manifest of {repository.removesuffix('/manifests')}:{rest}"
    return path


def _is_in_order(wanted: list[tuple[str, str, str]], seen: list[tuple[str, str, str]]) -> bool:
    """Whether all of ``wanted`` happened, one after the other; other things may lie between."""
    rest = iter(seen)
    return all(any(step == one for one in rest) for step in wanted)


@asynccontextmanager
async def open_team(home: Path, folder: Path, **directory: Any) -> AsyncIterator[Team]:
    with docker_registry(folder) as registry_url:
        async with relay_to(registry_url) as relay, HttpClient() as http:
            recording = Recording()
            async with (
                serve_app(recording.before("registry", relay)) as url,
                open_system(State(home), registries=(url,), directory=directory) as system,
            ):
                system.recording = recording
                registry = open_registry(registry_url, http)
                served = [await system.start_agent(one, publish_to=registry) for one in list_team()]
                yield Team(system, await system.start_hub(), registry, served[0], recording)


@pytest.fixture
async def team(retinue_home: Path, tmp_path: Path) -> AsyncIterator[Team]:
    async with open_team(retinue_home, tmp_path) as team:
        yield team


@pytest.fixture
async def doubting_team(retinue_home: Path, tmp_path: Path) -> AsyncIterator[Team]:
    """A team whose hub trusts no look-up of before."""
    async with open_team(retinue_home, tmp_path, ttl_s=1e-9) as team:
        yield team


@requirement("P-15")
@requirement("P-25")
@pytest.mark.parametrize("workflow", [CANONICAL, SEED_SPELLING], ids=["canonical", "spelling of the seed"])
async def test_an_idea_goes_through_plan_build_and_test(team: Team, wire: Wire, workflow: str) -> None:
    """Each agent is found by skill, and each output is chained into the next input (exchange 1-7)."""
    reply = await team.orchestrate(wire, _as_inline(workflow))
    assert reply["output"] == RESULT
    assert reply["workflow"] == "plan-build-test-seed"
    sent = [one for one in team.recording.exchanges if one.to in AGENTS]
    assert [one.to for one in sent] == list(AGENTS)
    for one, (skill, params), answer in zip(sent, PARAMS, ANSWERS, strict=True):
        assert list(one.request.items()) == [
            ("jsonrpc", "2.0"),
            ("method", skill),
            ("params", params),
            ("id", "orch"),
        ]
        assert (one.method, one.path, one.headers["content-type"]) == ("POST", "/execute", "application/json")
        assert (one.status, one.reply_headers["content-type"]) == (200, "application/json")
        assert list(one.answer.items()) == [("jsonrpc", "2.0"), ("result", answer), ("id", "orch")]


@requirement("P-15")
async def test_each_agent_is_looked_up_before_its_call(team: Team, wire: Wire) -> None:
    """The hub's own run records the look-up and then the call, step by step (exchange 1-7)."""
    run = (
        await wire.call(
            team.hub.url,
            "start_run",
            {"workflow": _as_inline(CANONICAL), "input": {"requirements": IDEA}},
        )
    ).result["run"]
    seen: list[tuple[str, str]] = []
    after, done = 0, False
    while not done:
        reply = (await wire.call(team.hub.url, "follow_run", {"run": run, "after": after})).result
        after, done = reply["next"], reply["done"]
        seen += [
            (event["kind"], event["skill"]) for event in reply["events"] if event["event"] == "step_finished"
        ]
    assert seen == [(kind, skill) for skill, _ in PARAMS for kind in ("choose", "call")]


@requirement("P-04")
async def test_the_arrows_of_the_diagram_pass_in_its_order(doubting_team: Team, wire: Wire) -> None:
    """A hub that asks anew for each step sends the messages of the seed's diagram (exchange 1-11)."""
    team = doubting_team
    assert (await team.orchestrate(wire, _as_inline(CANONICAL)))["output"] == RESULT
    plan, build, test = (MANIFEST.format(short) for short in ("plan", "build", "test"))
    diagram = [
        ("->", "registry", "catalog"),
        ("<-", "registry", "['agents/build', 'agents/plan', 'agents/test']"),
        ("->", "registry", plan),
        ("<-", "registry", plan),
        ("->", "plan-agent", "create_plan"),
        ("<-", "plan-agent", "['plan']"),
        ("->", "registry", build),
        ("<-", "registry", build),
        ("->", "build-agent", "generate_code"),
        ("<-", "build-agent", "['code']"),
        ("->", "registry", test),
        ("<-", "registry", test),
        ("->", "test-agent", "review_code"),
        ("<-", "test-agent", "['feedback', 'review']"),
    ]
    assert _is_in_order(diagram, team.arrows())
    assert {one.answer["id"] for one in team.recording.exchanges if one.to in AGENTS} == {"orch"}


@requirement("P-26")
async def test_a_hub_that_knows_its_agents_asks_the_registry_once(team: Team, wire: Wire) -> None:
    """Within the time to live (exchange 1-11): one catalog, each card pulled once, then only agents."""
    assert (await team.orchestrate(wire, _as_inline(CANONICAL)))["output"] == RESULT
    arrows = [arrow for arrow in team.arrows() if arrow[0] == "->"]
    agents = [("->", agent, skill) for agent, (skill, _) in zip(AGENTS, PARAMS, strict=True)]
    asked = [what for _, to, what in arrows if to == "registry"]
    assert arrows[-3:] == agents
    assert [what for what in asked if "/tags/" not in what and "manifest" not in what] == ["catalog"]
    manifests = [what for what in asked if "manifest" in what]
    assert sorted(set(manifests)) == [MANIFEST.format(short) for short in ("build", "plan", "test")]
    rows = team.hub.audit.recent(10)
    told = [(row["skill"], row["agent"], row["status"]) for row in rows if row["type"] == "CALL:ENDED"]
    assert set(told) >= {(skill, agent, "done") for agent, (skill, _) in zip(AGENTS, PARAMS, strict=True)}


@requirement("P-19")
@pytest.mark.parametrize("old_one", ["still runs", "is gone"])
async def test_a_replaced_agent_gets_the_next_call_without_a_restart(
    team: Team, wire: Wire, old_one: str
) -> None:
    """Another plan agent is published over the old one, at another port (exchange 1-7).

    ``serve`` tells the hub to read again; where nobody told it, the refused connection does.
    """
    await team.orchestrate(wire, _as_inline(CANONICAL))
    newer = plan_agent(_say({"plan": "another plan"}))
    newer.version = "1.1.0"
    await team.system.start_agent(newer, publish_to=team.registry)
    if old_one == "is gone":
        await team.plan_agent.stop()
    else:
        await wire.call(team.hub.url, "refresh_agents")
    reply = await team.orchestrate(wire, _as_inline(CANONICAL))
    assert reply["output"] == {**RESULT, "plan": "another plan"}


@requirement("P-16")
async def test_steps_side_by_side_run_at_the_same_time(team: Team, wire: Wire) -> None:
    """Seed 001: chains agent calls in sequence or in parallel; each waits for the other to have begun."""
    begun: list[str] = []
    both = asyncio.Event()

    async def meet(params: Any) -> Any:
        begun.append(params["requirements"])
        if len(begun) == 2:
            both.set()
        async with asyncio.timeout(60):
            await both.wait()
        return {"plan": params["requirements"]}

    await team.system.start_agent(plan_agent(meet), publish_to=team.registry)
    branch = {"skill": "create_plan", "with": {"requirements": "${{ input.name }}"}}
    workflow = {
        "name": "both",
        "steps": [
            {
                "id": "both",
                "parallel": {"mode": "all"},
                "steps": [{"id": "left", **branch}, {"id": "right", **branch}],
            }
        ],
    }
    arguments = {"workflow": workflow, "input": {"name": "x"}}
    reply = await wire.call(team.hub.url, "orchestrate_workflow", arguments)
    assert reply.result["output"] == {"left": {"plan": "x"}, "right": {"plan": "x"}}


def _say(value: Any) -> Answer:
    async def answer(params: Any) -> Any:
        return value

    return answer


def _as_inline(text: str) -> Any:
    """A definition as its author would send it over ``/execute``: the YAML's object."""
    return YAML(typ="safe", pure=True).load(text)
