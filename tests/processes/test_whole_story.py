"""All five seeds in one story: processes that share a card, a personality, an orchestration and one trace.

An agent is described by agent.json, published as a card in the hub's registry and as a personality on a KOI
network. The official MCP client finds it at the coordinator and has a hub orchestrate a task, in which agents
ask each other, call each other over /execute, A2A and MCP, and run into a loop.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
import urllib3

from tests.mcp.clients import connect, texts
from tests.processes.running import Program, program

PLANNER = '''
from retinue import Agent, Context

agent = Agent("story-planner", topics=["Planning"])


@agent.skill("plan", roles=["plan"])
async def plan(prompt: str, ctx: Context) -> str:
    """Plans a task with the numbers that the tools agent counts."""
    answers = await ctx.ask_agents(["counting"])
    best = answers.best.agent
    async with ctx.mcp(best) as tools:
        counted = await tools.call_tool("count", {"text": prompt})
    return f"{best} counted {counted}: {prompt}"


@agent.skill("go_a")
async def go(ctx: Context) -> str:
    """The first of three that call each other."""
    return await ctx.call("go_b", {}, agent="story-tools")
'''
CARD = {
    "name": "story-planner",
    "version": "1.0.0",
    "entry": "planner.py:agent",
    "description": "Plans what a story needs",
    "topics": ["Planning"],
    "traits": {"mood": "calm"},
    "mcp": {"expose_tools": ["plan", "go_a"]},
}
TOOLS = '''
from retinue import Agent, Context

agent = Agent("story-tools", version="1.0.0", topics=["Counting"])


@agent.skill(expose=True)
async def count(text: str) -> int:
    """Counts the words of a text."""
    return len(text.split())


@agent.skill("go_b", expose=True)
async def go(ctx: Context) -> str:
    """The second of three that call each other."""
    return await ctx.call("go_c", {}, agent="story-builder")
'''
BUILDER = '''
import os

from retinue import Agent, Context

agent = Agent("story-builder", version="1.0.0", scores={"execution": 0.9})


@agent.skill("execute", roles=["execute"], expose=True)
async def execute(prompt: str, ctx: Context) -> str:
    """Builds what a plan says, and finds out whether the agents run in a circle."""
    try:
        await go_on(ctx)
    except Exception as error:
        return f"built: {prompt}; the circle ended: {error}"
    return "the circle did not end"


@agent.skill("go_c", expose=True)
async def go(ctx: Context) -> str:
    """The third of three that call each other."""
    return await go_on(ctx)


async def go_on(ctx: Context) -> str:
    async with ctx.mcp(os.environ["PLANNER_URL"] + "/mcp") as planner:
        return str(await planner.call_tool("go_a", {}))
'''
_http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(10.0))


@dataclass
class Story:
    """The processes of the story and where the client finds them."""

    hub: str
    coordinator: str
    token: str
    programs: dict[str, Program]

    def list_calls(self, trace: str) -> list[dict[str, Any]]:
        """The ended calls of a trace, as all processes logged them."""
        lines = [line for one in self.programs.values() for line in one.lines if line.startswith("{")]
        found = [json.loads(line) for line in lines if trace in line]
        return [row for row in found if row["event"] == "call" and row["trace_id"] == trace]


@pytest.fixture
def story(tmp_path: Path, retinue_home: Path, port: int) -> Iterator[Story]:
    for name, text in (("planner.py", PLANNER), ("tools.py", TOOLS), ("builder.py", BUILDER)):
        (tmp_path / name).write_text(text)
    (tmp_path / "agent.json").write_text("// described once, shown in every form\n" + json.dumps(CARD))
    config = {
        "coordinator": {
            "name": "coordinator",
            "base_url": f"http://127.0.0.1:{port}/koi-net",
            "mcp_registry_port": port,
        }
    }
    (tmp_path / "coordinator.json").write_text(json.dumps(config))
    with ExitStack() as stack:

        def start(*arguments: str, **environment: str) -> Program:
            return stack.enter_context(program(*arguments, cwd=tmp_path, environment=environment))

        coordinator = start("koi", "coordinator", "--config", "coordinator.json")
        koi = coordinator.url_in("http://")
        hub = start("hub", "--bare", "--port", "0")
        url = hub.url_in("hub at")
        hub.wait_for("0 agents")
        planner = start("serve", "agent.json", "--koi-join", f"{koi}/koi-net")
        place = planner.url_in("story-planner")
        tools = start("serve", "tools.py")
        tools.url_in("story-tools")
        # of another mesh: no shared registry, no shared key
        builder = start("serve", "builder.py", RETINUE_HOME=str(tmp_path / "other"), PLANNER_URL=place)
        imported = start("import", "a2a", builder.url_in("story-builder"), "--name", "story-builder")
        imported.wait_for("story-builder: 2 skills")
        token = (retinue_home / "keys" / "local.token").read_text().strip()
        programs = {"hub": hub, "planner": planner, "tools": tools, "builder": builder}
        yield Story(url, koi, token, programs)


def get(url: str, token: str | None = None) -> bytes:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    reply = _http.request("GET", url, headers=headers)
    assert reply.status == 200, reply.data
    return reply.data


def get_json(url: str) -> Any:
    return orjson.loads(get(url))


async def test_five_seeds_in_one_story(story: Story) -> None:
    # the card in the registry (seed 001) is the file's (seed 004), and so is the personality (seed 003)
    assert "agents/story-planner" in get_json(f"{story.hub}/v2/_catalog")["repositories"]
    listed: dict[str, Any] = {}
    async with asyncio.timeout(30):
        while not listed:
            found = await asyncio.to_thread(get_json, f"{story.coordinator}/resources/list")
            listed = {one["id"]: one for one in found["resources"]}
    profile = get_json(f"{story.coordinator}/resources/read/agent:story-planner")["content"]
    traits = {trait["name"]: trait for trait in profile["traits"]}
    assert traits["mood"]["value"] == "calm"
    assert traits["plan"]["is_callable"]
    async with connect(f"{story.coordinator}/mcp") as client:
        assert "story-planner__plan" in {tool.name for tool in (await client.list_tools()).tools}
    # the orchestration (seed 002), with a question (seed 000) and calls over three protocols
    trace = "story-trace-1"
    meta: Any = {"X-OpenStarry-Trace-ID": trace}
    async with connect(f"{story.hub}/mcp", authorization=f"Bearer {story.token}") as client:
        asked = {"prompt": "count these four words", "preferences": {"workflow": "plan-execute"}}
        result = await client.call_tool("orchestrate", asked, meta=meta, read_timeout_seconds=120)
    (text,) = texts(result)
    answer = json.loads(text)
    assert answer["agents"] == ["story-planner", "story-builder"], text
    built = str(answer["output"])
    assert "story-tools counted {'result': " in built, built
    # the loop (seed 004) is refused at hop 6, and its path is drawn
    assert "hop 6 of at most 5" in built, built
    assert "story-planner → story-tools → story-builder → story-planner" in built
    # processes log a call just after they have answered it
    await asyncio.to_thread(story.programs["hub"].wait_for, '"skill":"orchestrate"')
    calls = story.list_calls(trace)
    wanted = {"orchestrate", "plan", "query_capabilities", "count", "execute", "go_a", "go_b", "go_c"}
    assert wanted <= {call["skill"] for call in calls}
    assert {"execute", "mcp", "a2a"} <= {call["door"] for call in calls}
    assert max(call["depth"] for call in calls if call["status"] == "done") <= 5
    shown = get(f"{story.hub}/ui/traces/{trace}", story.token).decode()
    assert "orchestrate" in shown
    assert "story-builder" in shown
