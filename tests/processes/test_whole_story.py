"""All five seeds in one story: processes that share a card, a personality, an orchestration and one trace.

An agent is described by agent.json, published as a card in the hub's registry and as a personality on a KOI
network. The official MCP client finds it at the coordinator and has a hub orchestrate a task. The hub asks
its agents what they can do now, and calls them over /execute, A2A and MCP. Then they run into a loop.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import orjson
import pytest
import urllib3

from tests.mcp.clients import connect, texts
from tests.processes.running import WAIT_S, Program, program, wait_until

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
CHECKER = '''
from retinue import Agent

agent = Agent("checks", version="1.0.0")


@agent.skill("check", expose=True)
async def check(text: str) -> str:
    """Checks what was built."""
    return "checked " + text.partition(":")[0]
'''
WORKFLOW = """
name: story
description: Plan, build and check, each by an agent that says it can
input: {type: object, properties: {prompt: {type: string}}, required: [prompt]}
steps:
  - {id: plan, role: plan, ask: true, prompt: "${{ input.prompt }}"}
  - {id: build, role: execute, ask: true, prompt: "${{ steps.plan.output }}"}
  - {id: check, skill: check, ask: true, with: {text: "${{ steps.build.output }}"}}
output:
  output: ["${{ steps.build.output }}", "${{ steps.check.output }}"]
  agents: ["${{ steps.plan.agent }}", "${{ steps.build.agent }}", "${{ steps.check.agent }}"]
"""
CALLED_AT = {
    ("planner", "query_capabilities"): {"execute"},
    ("planner", "plan"): {"execute"},
    ("builder", "execute"): {"a2a"},
    ("checker", "check"): {"mcp"},
    ("tools", "count"): {"mcp"},
    ("planner", "go_a"): {"mcp"},
    ("tools", "go_b"): {"mcp"},
    ("builder", "go_c"): {"a2a"},
}
TRACE_PAGE = """
retinue · orchestrate mcp done 0
story-planner · query_capabilities workflow done 1
story-planner · plan workflow done 1
retinue · query_capabilities execute done 2
story-planner · query_capabilities execute done 2
story-tools · query_capabilities execute done 2
story-checker · query_capabilities execute done 2
story-builder · query_capabilities execute done 2
story-tools · count mcp done 2
story-builder · query_capabilities workflow done 1
story-builder · execute workflow done 1
story-planner · server/discover mcp done 2
story-planner · initialize mcp done 2
story-planner · notifications/initialized mcp done 2
story-planner · go_a mcp failed recursion_limit 2
retinue · call_skill mcp refused recursion_limit 3
story-tools · go_b mcp refused recursion_limit 3
retinue · call_skill mcp refused recursion_limit 4
story-builder · go_c mcp refused recursion_limit 4
story-planner · server/discover mcp done 5
story-planner · initialize mcp done 5
story-planner · notifications/initialized mcp done 5
story-planner · go_a mcp failed recursion_limit 5
– · call_skill mcp refused recursion_limit 6
story-checker · query_capabilities workflow done 1
story-checker · check workflow done 1
"""
_http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(90.0))

pytestmark = pytest.mark.timeout(600)


@dataclass
class Story:
    """The processes of the story and where the client finds them."""

    hub: str
    coordinator: str
    token: str
    programs: dict[str, Program]

    def list_calls(self, name: str, trace: str) -> list[dict[str, Any]]:
        """The ended calls of a trace, as a process logged them."""
        lines = [line for line in self.programs[name].lines if line.startswith("{") and trace in line]
        found = [json.loads(line) for line in lines]
        return [row for row in found if row["event"] == "call" and row["trace_id"] == trace]


@pytest.fixture
def story(tmp_path: Path, retinue_home: Path, port: int) -> Iterator[Story]:
    files = {"planner.py": PLANNER, "tools.py": TOOLS, "builder.py": BUILDER, "checker.py": CHECKER}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (retinue_home / "workflows").mkdir(parents=True)
    (retinue_home / "workflows" / "story.yaml").write_text(WORKFLOW)
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
        planner.url_in("story-planner")
        tools = start("serve", "tools.py")
        tools.url_in("story-tools")
        # two of other meshes: no shared registry, no shared key; one speaks A2A to the hub, the other MCP
        place = f"{url}/agents/story-planner"
        builder = start("serve", "builder.py", RETINUE_HOME=str(tmp_path / "second"), PLANNER_URL=place)
        checker = start("serve", "checker.py", RETINUE_HOME=str(tmp_path / "third"))
        imported = start("import", "a2a", builder.url_in("story-builder"), "--name", "story-builder")
        imported.wait_for("story-builder: 2 skills")
        imported = start("import", "mcp-server", "story-checker", "--url", checker.url_in("checks") + "/mcp")
        imported.wait_for("story-checker: 1 ")
        token = (retinue_home / "keys" / "local.token").read_text().strip()
        programs = {"hub": hub, "planner": planner, "tools": tools, "builder": builder, "checker": checker}
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
    async with asyncio.timeout(WAIT_S):
        while not listed:
            found = await asyncio.to_thread(get_json, f"{story.coordinator}/resources/list")
            listed = {one["id"]: one for one in found["resources"]}
    profile = get_json(f"{story.coordinator}/resources/read/agent:story-planner")["content"]
    traits = {trait["name"]: trait for trait in profile["traits"]}
    assert traits["mood"]["value"] == "calm"
    assert traits["plan"]["is_callable"]
    async with connect(f"{story.coordinator}/mcp") as client:
        assert "story-planner__plan" in {tool.name for tool in (await client.list_tools()).tools}
    # the orchestration (seed 002), with questions (seed 000) and calls over three protocols
    trace = "story-trace-1"
    answer = await orchestrate(story, trace, "story")
    assert answer["agents"] == ["story-planner", "story-builder", "story-checker"], answer
    built, checked = answer["output"]
    assert checked == "checked built"
    assert "story-tools counted {'result': " in built, built
    # the loop (seed 004) is refused at hop 6, and its path is drawn
    assert "hop 6 of at most 5" in built, built
    assert "story-tools → story-builder → story-planner → story-tools" in built
    path = "story-builder:execute → story-planner:go_a → story-tools:go_b → story-builder:go_c"
    assert f"{path} → story-planner:go_a → story-tools:go_b" in built
    # which door each agent was called at: by the hub, which asked those with /execute first, and by others
    for (name, skill), doors in CALLED_AT.items():
        # processes log a call just after they have answered it
        await asyncio.to_thread(story.programs[name].wait_for, f'"skill":"{skill}"')
        rows = [row for row in story.list_calls(name, trace) if row["skill"] == skill]
        assert {row["door"] for row in rows} == doors, (name, rows)
    asked = story.list_calls("planner", trace)
    assert 1 in {row["depth"] for row in asked if row["skill"] == "query_capabilities"}
    await asyncio.to_thread(story.programs["hub"].wait_for, '"skill":"orchestrate"')
    [refused] = [row for row in story.list_calls("hub", trace) if row["depth"] > 5]
    assert (refused["depth"], refused["caller"], refused["error"]) == (6, "story-planner", "recursion_limit")
    # one trace shows it all
    expected = sorted(line for line in TRACE_PAGE.splitlines() if line)
    shown = await asyncio.to_thread(read_trace, story, trace, len(expected))
    assert "Depth 6 of at most 5" in shown
    assert sorted(read_trace_page(shown)) == expected
    # the workflow that the seed names, with the same agents
    answer = await orchestrate(story, "story-trace-2", "plan-execute")
    assert answer["agents"] == ["story-planner", "story-builder"], answer
    assert "story-tools counted {'result': " in str(answer["output"])


def read_trace(story: Story, trace: str, rows: int) -> str:
    """The page of a trace when it has so many rows: processes tell of a call after they have answered it."""
    shown = ""

    def is_whole() -> bool:
        nonlocal shown
        shown = get(f"{story.hub}/ui/traces/{trace}", story.token).decode()
        return len(read_trace_page(shown)) >= rows

    wait_until(is_whole, f"{rows} rows of the trace")
    return shown


def read_trace_page(page: str) -> list[str]:
    """The rows of the page without their durations: agent, skill, endpoint, outcome, depth."""
    rows = re.findall(r"<tr data-key.*?</tr>", page, re.DOTALL)
    plain = [" ".join(unescape(re.sub(r"<[^>]+>", " ", row)).split()) for row in rows]
    # the reason of a refusal holds ids
    plain = [
        re.sub(r"(recursion_limit) Call chain too deep: .* (\d)( [\d.]+ m?s)$", r"\1 \2\3", row)
        for row in plain
    ]
    return [re.sub(r" [\d.]+ m?s$", "", row) for row in plain]


async def orchestrate(story: Story, trace: str, workflow: str) -> Any:
    """The answer of the hub's tool, as the official client gets it."""
    meta: Any = {"X-OpenStarry-Trace-ID": trace}
    asked = {"prompt": "count these four words", "preferences": {"workflow": workflow}}
    async with connect(f"{story.hub}/mcp", authorization=f"Bearer {story.token}") as client:
        result = await client.call_tool("orchestrate", asked, meta=meta, read_timeout_seconds=120)
    (text,) = texts(result)
    return json.loads(text)
