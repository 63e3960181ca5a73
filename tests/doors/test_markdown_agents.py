"""Agents in Markdown at a hub: a call is a run of the step think, with the rights of the caller."""

from __future__ import annotations

from typing import Any

from tests.doors.office import Office
from tests.doors.test_think_runs import start_agents
from tests.support.thinking import ScriptedModel, say, use

from retinue.markdown.agent import ThinkingAgent
from retinue.markdown.definition import parse_agent

FILE = """\
---
name: researcher
description: Answers questions from sources.
tools: count, Read
---
You answer with ${{ numbers }}.
"""


async def start_researcher(office: Office, *script: Any, text: str = FILE) -> ScriptedModel:
    await office.system.start_agent(ThinkingAgent(parse_agent(text, "researcher.md")))
    return await start_agents(office, *script)


async def test_a_call_of_an_agent_in_markdown_is_a_run_with_tools(office: Office) -> None:
    model = await start_researcher(office, use(("counter__count", {"number": 7})), say("It is 7."))
    assert await office.get("researcher", {"prompt": "How many?"}) == "It is 7."
    assert model.requests[0].system.endswith("You answer with ${{ numbers }}.")
    assert [tool.name for tool in model.requests[0].tools] == ["counter__count"]
    (run,) = (await office.get("list_runs"))["runs"]
    assert (run["workflow"], run["status"]) == ("researcher", "done")
