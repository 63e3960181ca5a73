"""Runs of a step think at a hub: what readers see, limits and more, and which skills are tools of whom."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retinue import Agent
from retinue.client.connecting import connect
from retinue.core.errors import LimitedError
from retinue.web.issued_tokens import TokenFile
from tests.doors.office import Office
from tests.support.thinking import ScriptedModel, say, think, use

COUNT = [use(("counter__count", {"number": n})) for n in range(4)]


def make_counter() -> Agent:
    agent = Agent("counter", version="1.0.0")

    @agent.skill(read_only=True)
    async def count(number: int) -> int:
        """Counts numbers."""
        return number

    @agent.skill(expose=True, read_only=True)
    async def tell_time() -> str:
        """Tells the time of the day."""
        return "noon"

    return agent


async def start_agents(office: Office, *script: Any, **options: Any) -> ScriptedModel:
    model = ScriptedModel(*script, **options)
    await office.system.start_agent(model.agent)
    await office.system.start_agent(make_counter())
    await office.get("refresh_agents")
    return model


async def run_think(office: Office, run: str, **options: Any) -> Any:
    await office.get("start_run", {"workflow": think(**options), "run": run})
    return await office.follow(run)


async def test_a_run_that_reached_a_limit_is_limited_for_all_readers_and_goes_on_with_more(
    office: Office,
) -> None:
    model = await start_agents(office, *COUNT, say("the end"))
    reply = await run_think(office, "r", tools=["count"], limits={"turns": 2})
    assert reply["status"] == "limited"
    cause = reply["error"]["data"]["cause"]
    assert cause["type"] == "limited"
    assert cause["data"]["answer"] == "as far as I came"
    assert cause["remedy"] == "go on with more: retinue resume r --limit turns=N"
    shown = await office.get("show_run", {"run": "r"})
    (row,) = [one for one in (await office.get("list_runs"))["runs"] if one["run"] == "r"]
    assert shown["status"] == row["status"] == "limited"
    assert shown["usage"]["input_tokens"] == 300
    (node,) = shown["steps"]
    assert (node["step"], node["status"], node["kind"]) == ("research", "failed", "think")
    assert [turn["step"] for turn in node["steps"]] == [f"research/turn-{n}" for n in (1, 2, 3)]
    assert [(one["step"], one["status"]) for one in node["steps"][0]["steps"]] == [
        ("research/turn-1/model", "done"),
        ("research/turn-1/call-1", "done"),
    ]
    again = await office.get("extend_run", {"run": "r", "limits": {"turns": 9, "time": "20m"}})
    assert (again["run"], again["status"]) == ("r", "running")
    ended = await office.follow("r", after=again["after"])
    assert (ended["status"], ended["output"]) == ("done", "the end")
    assert len(model.requests) == 5
    (node,) = (await office.get("show_run", {"run": "r"}))["steps"]
    assert (node["status"], node.get("error")) == ("done", None)


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"turns": 3}, "limits.turns must be more than 3, which is spent"),
        ({"turn": 9}, "limits.turn: known are turns, calls, tokens, dollars, time"),
        ({"turns": "9"}, "limits.turns: Input should be a valid integer"),
        ({"calls": 9}, "the run ended at the limit of turns: give limits.turns"),
        ({"turns": 9, "time": 3}, "limits.time"),
    ],
)
async def test_limits_that_would_not_help_are_refused(office: Office, limits: Any, problem: str) -> None:
    await start_agents(office, *COUNT)
    await run_think(office, "r", tools=["count"], limits={"turns": 2})
    refused = await office.ask("extend_run", {"run": "r", "limits": limits})
    assert problem in refused.error["message"]
    assert (await office.get("show_run", {"run": "r"}))["status"] == "limited"


async def test_a_run_that_has_not_ended_at_a_limit_is_not_extended(office: Office) -> None:
    await start_agents(office, say("done"))
    await run_think(office, "r", tools=[])
    refused = await office.ask("extend_run", {"run": "r", "limits": {"turns": 9}})
    assert "Run r has not ended at a limit: done" in refused.error["message"]


async def test_a_limit_in_a_branch_tells_to_run_the_step_again(office: Office) -> None:
    await start_agents(office, *COUNT)
    step = think(tools=["count"], limits={"turns": 1})["steps"][0]
    flow = {"name": "w", "steps": [{"id": "each", "foreach": [1], "steps": [step]}]}
    await office.get("start_run", {"workflow": flow, "run": "r"})
    assert (await office.follow("r"))["status"] == "limited"
    refused = await office.ask("extend_run", {"run": "r", "limits": {"turns": 9}})
    assert "retinue rerun r --from each" in str(refused.error)


async def test_the_client_raises_the_limit_and_goes_on(office: Office) -> None:
    await start_agents(office, *COUNT, say("the end"))
    async with connect(office.hub.url, token=office.system.token.removeprefix("Bearer ")) as mesh:
        run = await mesh.start(think(tools=["count"], limits={"turns": 2}), id="r")
        with pytest.raises(LimitedError) as limited:
            await run.result(timeout_s=20)
        assert limited.value.answer == "as far as I came"
        assert await run.status() == "limited"
        await run.extend(turns=9)
        assert await run.result(timeout_s=20) == "the end"


async def test_a_model_finds_skills_through_the_search_of_the_hub(office: Office) -> None:
    model = await start_agents(
        office,
        use(("find_skills", {"what": "time of the day"})),
        use(("counter__tell_time", {})),
        say("noon"),
    )
    assert (await run_think(office, "r"))["output"] == "noon"
    assert "counter__tell_time" in [tool.name for tool in model.requests[1].tools]
    assert "noon" in model.list_results()[1]


async def test_a_run_has_the_tools_that_its_caller_sees_and_no_others(office: Office) -> None:
    searches = use(("find_skills", {"what": "counts numbers"}))
    model = await start_agents(office, searches, use(("counter__count", {"number": 1})), say("ok"))
    _, text = TokenFile(office.system.state.keys).issue(("exposed",))
    flow = think(tools=["count", "tell_time", "counter/*", "search"])
    arguments = {"workflow": flow, "input": {}}
    await office.get("orchestrate_workflow", arguments, authorization=f"Bearer {text}")
    assert [tool.name for tool in model.requests[-1].tools] == ["find_skills", "counter__tell_time"]
    assert "There is no tool 'counter__count'" in model.list_results()[1]
    assert "counter__count" not in model.list_results()[0]


async def test_a_tied_run_ends_with_its_caller_and_goes_on_when_the_call_comes_again(office: Office) -> None:
    held, answering = asyncio.Event(), asyncio.Event()
    agent = Agent("holder", version="1.0.0")

    @agent.skill(read_only=True)
    async def hold() -> str:
        """Holds."""
        held.set()
        await answering.wait()
        return "held"

    await office.system.start_agent(agent)
    model = await start_agents(office, use(("holder__hold", {})), say("the end"))
    arguments = {
        "workflow": think(tools=["hold"]),
        "input": {},
        "run": "r",
        "context": {"tied": True},
    }
    call = asyncio.create_task(office.ask("orchestrate_workflow", arguments))
    await held.wait()
    call.cancel()
    assert (await office.follow("r"))["status"] == "cancelled"
    answering.set()
    reply = await office.get("orchestrate_workflow", arguments)
    assert reply["output"] == "the end"
    # the first request is recorded
    assert len(model.requests) == 2


async def test_a_large_result_is_kept_as_an_artifact_that_readers_of_the_run_see(office: Office) -> None:
    agent = Agent("dump", version="1.0.0")

    @agent.skill(read_only=True)
    async def everything() -> list[str]:
        """Gives everything."""
        return [f"row {number} {'x' * 90}" for number in range(20_000)]

    def read(request: Any) -> Any:
        (tool,) = [tool for tool in request.tools if tool.name == "read_result"]
        text = str(request.messages[-1].to_json())
        link = text[text.index("artifact:sha256:") :][: len("artifact:sha256:") + 12]
        return use((tool.name, {"link": link, "lines": "15001-15002"}))

    model = ScriptedModel(use(("dump__everything", {})), read, say("ok"))
    await office.system.start_agent(model.agent)
    await office.system.start_agent(agent)
    await office.get("refresh_agents")
    assert (await run_think(office, "r", tools=["everything"]))["status"] == "done"
    first, second = model.list_results()
    assert "a list of 20,000 items" in first
    assert '"row 15000 x' not in first
    assert '"row 14999 x' in second
    shown = await office.get("show_run", {"run": "r"})
    made, asked = (turn["steps"][1] for turn in shown["steps"][0]["steps"][:2])
    link = made["output"]["retinue/cut"]["link"]
    assert (link["media_type"], link["name"]) == ("application/json", "everything.json")
    assert link["size"] > 1_900_000
    assert asked["output"]["parts"][0]["place"].startswith("lines 15,001 to 15,002, from byte ")
