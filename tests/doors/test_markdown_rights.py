"""Rights of agents in Markdown: a run has those of its caller, as far as the agent has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retinue.storage.state import State
from retinue.web.issued_tokens import TokenFile
from tests.doors.office import Office
from tests.doors.test_markdown_agents import start_researcher
from tests.support.thinking import say, use
from tests.system import Reply, System, Wire, open_system

COUNT = use(("counter__count", {"number": 7}))


def limited(system: System, *agents: str) -> dict[str, str]:
    """The headers of a token of the scope mesh, limited to these agents."""
    _, text = TokenFile(system.state.keys).issue(("mesh",), agents=agents)
    return {"authorization": f"Bearer {text}"}


@pytest.mark.parametrize("place", ["hub", "agent", "alone"])
async def test_a_caller_limited_to_the_agent_calls_it_and_its_tools_are_those_of_the_token(
    system: System, wire: Wire, place: str
) -> None:
    """At the hub, at the agent of a hub, and where no hub runs; the model need not be named."""
    hub = None if place == "alone" else await system.start_hub()
    model, served = await start_researcher(system, COUNT, say("It is 7."))
    url = served.url
    if hub is not None:
        await wire.call(hub.url, "refresh_agents")
        url = hub.url if place == "hub" else served.url
    both = await wire.call(url, "researcher", {"prompt": "How many?"}, **limited(system, "researcher", "c*"))
    assert both.result == "It is 7."
    assert "\n7\n" in model.list_results()[0]
    await wire.call(url, "researcher", {"prompt": "And now?"}, **limited(system, "researcher"))
    assert model.requests[2].tools == ()
    assert "There is no tool 'counter__count'" in model.list_results()[0]


async def test_a_limited_caller_picks_up_its_run_and_no_other_and_starts_none_itself(office: Office) -> None:
    model, _ = await start_researcher(office.system, say("It is 7."))
    await office.get("refresh_agents")
    mine, other = limited(office.system, "researcher"), limited(office.system, "researcher", "counter")
    ask = {"prompt": "How many?", "run": "r"}
    counts = []
    for caller in (mine, other, mine, other, {}):
        assert await office.get("researcher", ask, **caller) == "It is 7."
        counts.append(len(model.requests))
    assert counts == [1, 2, 2, 2, 3]
    wide = limited(office.system, "researcher", "retinue")
    for skill, arguments in (("show_run", {"run": "r"}), ("start_run", {"workflow": "direct"})):
        refused = await office.ask(skill, arguments, **wide)
        assert "runs no workflows" in refused.error["message"]


async def test_only_a_process_of_the_mesh_names_the_agent_between(office: Office) -> None:
    """A caller that says so itself stays limited."""
    headers = limited(office.system, "retinue")
    flow = {"workflow": {"name": "w", "steps": [{"id": "a", "skill": "count", "with": {}}]}, "input": {}}
    reply = await office.ask(
        "orchestrate_workflow", flow, x_retinue_rights="mesh through:researcher", **headers
    )
    assert "runs no workflows" in reply.error["message"]


async def ask_with_lists(home: Path, wire: Wire, access: dict[str, Any]) -> tuple[Any, Reply]:
    """What the model was given, and the reply, where agents have these access lists."""
    async with open_system(State(home), access=access) as system:
        hub = await system.start_hub()
        model, _ = await start_researcher(system, COUNT, say("done"))
        await wire.call(hub.url, "refresh_agents")
        reply = await wire.call(hub.url, "researcher", {"prompt": "x"}, authorization=system.token)
        return model, reply


@pytest.mark.parametrize(
    ("access", "has_tool"),
    [
        ({"counter": {"receive": ["local"]}}, False),
        ({"counter": {"receive": ["local", "researcher"]}}, True),
        ({"counter": {"receive": ["researcher"]}}, False),
        ({"researcher": {"send": []}}, False),
        ({"researcher": {"send": ["counter/other"]}}, False),
        ({"researcher": {"send": ["counter/count"]}}, True),
        ({"researcher": {"send": ["c*"]}}, True),
    ],
)
async def test_a_tool_is_open_to_the_caller_and_to_the_agent(
    retinue_home: Path, wire: Wire, access: dict[str, Any], has_tool: bool
) -> None:
    model, reply = await ask_with_lists(retinue_home, wire, access)
    assert reply.result == "done"
    assert bool(model.requests[0].tools) is has_tool
    assert ("\n7\n" in model.list_results()[0]) is has_tool
