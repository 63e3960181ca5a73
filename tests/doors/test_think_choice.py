"""The workflow think of ``orchestrate``: chosen by name, by ``auto``, and refused without a model."""

from __future__ import annotations

from retinue import Agent
from retinue.testing import ModelTurn, ScriptedModel
from tests.doors.office import Office
from tests.requirements import requirement

WARM = {"prompt": "How is the weather in Rome?"}
FORCED = {**WARM, "preferences": {"workflow": "think"}}
FINDS = (
    ModelTurn(calls=[("find_skills", {"what": "weather of a city"})]),
    ModelTurn(calls=[("met__weather", {"city": "Rome"})]),
    "31 degrees",
)


def make_met() -> Agent:
    agent = Agent("met", version="1.0.0")

    @agent.skill(read_only=True)
    async def weather(city: str) -> str:
        """Tells the weather of a city."""
        return f"{city}: 31 degrees"

    return agent


def make_writer(*, is_model: bool = False) -> Agent:
    """An agent that takes prompts and no tools."""
    agent = Agent("writer", version="1.0.0", labels={"kind": "model"} if is_model else {})

    @agent.skill("execute", roles=["execute"])
    async def execute(prompt: str) -> str:
        return "in words"

    return agent


async def start(office: Office, *agents: Agent) -> None:
    for agent in agents:
        await office.system.start_agent(agent)
    await office.get("refresh_agents")


@requirement("L-30")
async def test_auto_lets_a_model_think_where_a_skill_surely_fits_and_says_why(office: Office) -> None:
    model = ScriptedModel(*FINDS)
    await start(office, make_met(), model)
    reply = await office.get("orchestrate", WARM)
    assert (reply["workflow"], reply["output"]) == ("think", "31 degrees")
    because = "the skill weather fits it, and a model can call skills"
    assert reply["reasons"][0] == f"workflow: think, because {because}"
    assert reply["choice"]["because"] == because
    assert reply["agents"] == ["scripted", "met"]
    assert "Rome: 31 degrees" in model.list_results()[-1][0]
    started = await office.get("start_run", {"workflow": "auto", "input": WARM})
    assert started["choice"]["workflow"] == "think"


@requirement("L-30")
async def test_auto_keeps_to_its_rules_where_thinking_does_not_surely_help(office: Office) -> None:
    await start(office, ScriptedModel("ok", repeats=True), make_writer(), make_met())
    workflows = [
        (await office.get("orchestrate", arguments))["workflow"]
        for arguments in (
            {"prompt": "What is 2 + 2?"},
            {**WARM, "preferences": {"role": "plan"}},
            {**WARM, "preferences": {"agent": "writer"}},
            {"prompt": "Polish this text about the weather of a city"},
            {"prompt": "Delete the weather of a city"},
        )
    ]
    assert workflows == ["direct", "direct", "direct", "iterative", "direct"]


async def test_a_preferred_model_thinks_and_its_answers_are_not_cached(office: Office) -> None:
    other = ScriptedModel("from the other", name="other", repeats=True)
    await start(office, ScriptedModel("from the first", scores={"execution": 0.9}), other)
    arguments = {**FORCED, "preferences": {"workflow": "think", "agent": "other"}}
    for _ in range(2):
        reply = await office.get("orchestrate", arguments)
        assert (reply["output"], reply["agents"], reply["fromCache"]) == ("from the other", ["other"], False)
    role = {**FORCED, "preferences": {"workflow": "think", "role": "execute"}}
    assert (await office.get("orchestrate", role))["output"] == "from the first"


async def test_without_a_model_that_takes_tools_think_says_who_is_missing(office: Office) -> None:
    await start(office, make_writer(is_model=True), make_met())
    assert (await office.get("orchestrate", WARM))["workflow"] == "direct"
    refused = await office.ask("orchestrate", FORCED)
    assert refused.error["data"]["type"] == "no_model"
    assert "a step think needs a model that takes tools; writer: takes no tools" in refused.error["message"]
    assert "set ANTHROPIC_API_KEY" in refused.error["data"]["remedy"]
    assert len((await office.get("list_runs"))["runs"]) == 1
