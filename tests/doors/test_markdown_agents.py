"""Agents in Markdown: a call is a run of the step think, with the rights of the caller."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retinue.markdown.agent import DIGEST_KEY, ThinkingAgent
from retinue.markdown.definition import parse_agent
from retinue.web.issued_tokens import TokenFile
from tests.doors.office import Office
from tests.doors.test_think_runs import COUNT, make_counter
from tests.support.thinking import ScriptedModel, say, use
from tests.system import Served, System, Wire

FILE = """\
---
name: researcher
description: Answers questions from sources.
tools: count, Read
---
You answer with ${{ numbers }}.
"""


async def start_researcher(
    system: System, *script: Any, own: str = "", text: str = FILE
) -> tuple[ScriptedModel, Served]:
    """A model, a counter, and the agent of ``text`` with further keys."""
    if own:
        text = text.replace("tools: count, Read", f"tools: count\nretinue:\n  {own}")
    model = ScriptedModel(*script)
    await system.start_agent(model.agent)
    await system.start_agent(make_counter())
    agent = ThinkingAgent(parse_agent(text, "researcher.md"))
    return model, await system.start_agent(agent, has_runs=True)


async def test_a_call_is_a_run_with_tools_of_the_mesh(office: Office) -> None:
    script = use(("counter__count", {"number": 7})), say("It is 7.")
    model, _ = await start_researcher(office.system, *script)
    await office.get("refresh_agents")
    assert await office.get("researcher", {"prompt": "How many?"}) == "It is 7."
    assert model.requests[0].system.startswith("You answer with ${{ numbers }}.")
    assert [tool.name for tool in model.requests[0].tools] == ["counter__count"]
    assert "\n7\n" in model.list_results()[0]
    (run,) = (await office.get("list_runs"))["runs"]
    assert (run["workflow"], run["status"]) == ("researcher", "done")


async def test_without_a_hub_the_serving_process_executes_the_run(system: System, wire: Wire) -> None:
    model, served = await start_researcher(system, use(("counter__count", {"number": 7})), say("It is 7."))
    reply = await wire.call(served.url, "researcher", {"prompt": "How many?"})
    assert reply.result == "It is 7."
    assert "\n7\n" in model.list_results()[0]


async def test_a_caller_without_the_scope_of_a_skill_does_not_reach_it_through_the_agent(
    office: Office,
) -> None:
    model, _ = await start_researcher(office.system, say("I have none."), own="expose: true")
    await office.get("refresh_agents")
    _, text = TokenFile(office.system.state.keys).issue(("exposed",))
    reply = await office.ask("researcher", {"prompt": "Count"}, authorization=f"Bearer {text}")
    assert reply.result == "I have none."
    assert model.requests[0].tools == ()


async def test_a_run_id_picks_the_run_up_again(office: Office) -> None:
    model, _ = await start_researcher(office.system, say("It is 7."))
    await office.get("refresh_agents")
    for _ in range(2):
        assert await office.get("researcher", {"prompt": "How many?", "run": "r"}) == "It is 7."
    assert len(model.requests) == 1


@pytest.mark.parametrize(("run", "status"), [(None, "cancelled"), ("r", "done")])
async def test_a_caller_that_goes_away_ends_the_run_unless_it_gave_an_id(
    office: Office, run: str | None, status: str
) -> None:
    asked, answering = asyncio.Event(), asyncio.Event()

    def wait(request: Any) -> Any:
        asked.set()
        return say("It is 7.")

    agent = make_counter()

    @agent.skill
    async def hold() -> str:
        """Holds."""
        asked.set()
        await answering.wait()
        return "held"

    model = ScriptedModel(use(("counter__hold", {})), wait)
    await office.system.start_agent(model.agent)
    await office.system.start_agent(agent)
    definition = parse_agent(FILE.replace("count", "hold"), "researcher.md")
    await office.system.start_agent(ThinkingAgent(definition), has_runs=True)
    await office.get("refresh_agents")
    arguments = {"prompt": "Hold"} if run is None else {"prompt": "Hold", "run": run}
    call = asyncio.create_task(office.ask("researcher", arguments))
    await asked.wait()
    call.cancel()
    (row,) = (await office.get("list_runs"))["runs"]
    if run is not None:
        answering.set()
    assert (await office.follow(row["run"]))["status"] == status


async def test_a_limit_is_the_error_with_the_last_answer(office: Office) -> None:
    await start_researcher(office.system, *COUNT, own="limits: {turns: 2}")
    await office.get("refresh_agents")
    error = (await office.ask("researcher", {"prompt": "Count", "run": "r"})).error
    assert error["data"]["type"] == "limited"
    assert error["data"]["answer"] == "as far as I came"
    assert "retinue resume r --limit turns=N" in error["data"]["remedy"]


async def test_an_agent_whose_tools_all_are_missing_answers_without_tools(office: Office) -> None:
    model, _ = await start_researcher(office.system, say("ok"), text=FILE.replace("count", "missing"))
    await office.get("refresh_agents")
    assert await office.get("researcher", {"prompt": "Count"}) == "ok"
    assert model.requests[0].tools == ()


async def test_input_and_output_of_the_file_are_those_of_the_skill(office: Office) -> None:
    schemas = "input: {properties: {topic: {type: string}}, required: [topic]}\n  output: {type: object}"
    own = f"skill: rate\n  {schemas}"
    model, _ = await start_researcher(office.system, say(output={"stars": 5}), own=own)
    await office.get("refresh_agents")
    assert await office.get("rate", {"topic": "tea"}) == {"stars": 5}
    (message,) = model.requests[0].messages
    assert '"topic": "tea"' in str(message)
    assert "missing required field 'topic'" in str((await office.ask("rate", {})).error)


async def test_without_a_model_the_error_says_how_to_get_one(office: Office) -> None:
    await office.system.start_agent(ThinkingAgent(parse_agent(FILE, "researcher.md")), has_runs=True)
    await office.get("refresh_agents")
    error = (await office.ask("researcher", {"prompt": "Count"})).error
    assert "a step think needs a model that takes tools" in str(error)


def test_an_edited_file_has_another_card() -> None:
    first, second = (
        ThinkingAgent(parse_agent(text, "researcher.md")).record() for text in (FILE, f"{FILE}Be brief.\n")
    )
    assert first.annotations[DIGEST_KEY] != second.annotations[DIGEST_KEY]
