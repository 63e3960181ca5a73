"""An agent in Markdown is an agent like any other: every protocol calls it, and its tools run."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from a2a.helpers import new_text_message
from a2a.types import a2a_pb2 as types
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from retinue.markdown.agent import ThinkingAgent
from retinue.markdown.definition import parse_agent
from retinue.web.issued_tokens import TokenFile
from tests.doors.message_worker import say
from tests.doors.test_asking_clients import Person, issue
from tests.doors.test_markdown_agents import FILE
from tests.doors.test_think_runs import make_counter
from tests.interop.test_a2a_sdk import VERSIONS, call, message_for, open_client
from tests.mcp.clients import MODES, connect, connect_stdio, texts
from tests.mcp.test_calling import initialize
from tests.support.thinking import ScriptedModel, use
from tests.support.thinking import say as reply
from tests.system import WAIT_S, Served, System, Wire

EXPOSED = FILE.replace("tools: count, Read", "tools: count\nretinue:\n  expose: true")
PROMPT = {"prompt": "How many?"}


@dataclass(frozen=True, slots=True)
class Mesh:
    """A hub, a model with a counter, and the agent."""

    system: System
    model: ScriptedModel
    served: Served
    hub: str

    def check(self, answer: Any) -> None:
        check_tool_used(self.model, answer)


def check_tool_used(model: ScriptedModel, answer: Any) -> None:
    """The answer is that of the script, whose model called the counter once."""
    assert answer == "It is 7."
    assert len(model.requests) == 2
    assert "\n7\n" in model.list_results()[0]


async def start_tools(system: System) -> ScriptedModel:
    model = ScriptedModel(use(("counter__count", {"number": 7})), reply("It is 7."))
    await system.start_agent(model.agent)
    await system.start_agent(make_counter())
    return model


@pytest.fixture
async def mesh(system: System, wire: Wire) -> Mesh:
    model = await start_tools(system)
    agent = ThinkingAgent(parse_agent(EXPOSED, "researcher.md"))
    served = await system.start_agent(agent, has_runs=True)
    return Mesh(system, model, served, (await system.start_hub()).url)


HUB, AGENT = "the hub", "the agent"
everywhere = pytest.mark.parametrize("place", [HUB, AGENT])


@everywhere
async def test_execute(mesh: Mesh, wire: Wire, place: str) -> None:
    url = mesh.hub if place == HUB else mesh.served.url
    mesh.check((await wire.call(url, "researcher", PROMPT)).result)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("path", ["/mcp", "/agents/researcher/mcp", ""])
async def test_the_official_client_of_mcp(mesh: Mesh, mode: str, path: str) -> None:
    """At the hub, at the hub's path of the agent, and at the agent itself."""
    url = f"{mesh.hub}{path}" if path else f"{mesh.served.url}/mcp"
    async with connect(url, mode, authorization=mesh.system.token) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        (name,) = [name for name in listed if "researcher" in name]
        result = await client.call_tool(name, PROMPT)
    assert not result.is_error, texts(result)
    mesh.check(texts(result)[0])


@everywhere
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "make", [lambda: message_for("researcher", PROMPT), lambda: new_text_message("How many?")]
)
async def test_the_sdk_of_a2a(
    mesh: Mesh, version: str, streaming: bool, place: str, make: Callable[[], types.Message]
) -> None:
    url = f"{mesh.hub}/agents/researcher" if place == HUB else mesh.served.url
    async with open_client(url, version, mesh.system.token, streaming=streaming) as client:
        task = await call(client, make())
    assert task.status.state == types.TaskState.TASK_STATE_COMPLETED, task
    (part,) = [part for artifact in task.artifacts for part in artifact.parts]
    mesh.check(MessageToDict(part).get("text"))


@everywhere
async def test_messages(mesh: Mesh, wire: Wire, place: str) -> None:
    url = mesh.hub if place == HUB else mesh.served.url
    task = {"task_type": "researcher", "task_parameters": PROMPT}
    answer = (await say(wire, url, "TASK_REQUEST", task, receiver={"agent_id": "researcher"})).json
    assert answer["performative"] == "INFORM_RESULT", answer
    mesh.check(answer["payload"]["result_summary"])


async def test_stdio_without_a_hub(system: System, tmp_path: Path) -> None:
    """The process of the agent executes the run."""
    model = await start_tools(system)
    file = tmp_path / "researcher.md"
    file.write_text(EXPOSED)
    async with connect_stdio(file) as pipe:
        await pipe.ask(initialize())
        await pipe.tell({"jsonrpc": "2.0", "method": "notifications/initialized"})
        params = {"name": "researcher", "arguments": PROMPT}
        called = await pipe.ask({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params})
    check_tool_used(model, called["result"]["content"][0]["text"])


async def test_the_bridge_of_mcp(mesh: Mesh) -> None:
    """``retinue mcp``, as clients that start programs use it."""
    arguments = ["-m", "retinue", "mcp"]
    command = StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))
    async with Client(stdio_client(command)) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        (name,) = [name for name in names if "researcher" in name]
        mesh.check(texts(await client.call_tool(name, PROMPT))[0])


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_of_mcp_whose_token_approves_is_asked_about_a_call_that_waits(
    system: System, wire: Wire, mode: str
) -> None:
    """One client says yes and one says no; a client without the scope is not asked."""
    model = await start_tools(system)
    text = EXPOSED.replace("  expose: true", "  expose: true\n  approve: counter/*")
    await system.start_agent(ThinkingAgent(parse_agent(text, "researcher.md")), has_runs=True)
    hub = await system.start_hub(durable=True)
    await hub.mesh.directory.refresh()

    async def ask(person: Person, token: str) -> str:
        url = f"{hub.url}/mcp"
        async with connect(url, mode, authorization=token, elicitation_callback=person) as client:
            return texts(await client.call_tool("researcher__researcher", PROMPT))[0]

    approver = issue(system, "exposed", "mesh", "approves")
    person, refuser, member = Person(), Person(approves=False), Person()
    async with asyncio.timeout(2 * WAIT_S):
        assert await ask(person, approver) == "It is 7."
        question = 'counter/count with {"number":7}? the step asks a person before counter/count.'
        assert person.messages == [question]
        assert "\n7\n" in model.list_results()[0]
        assert await ask(refuser, approver) == "It is 7."
        assert "a person refused it: as agreed" in model.list_results()[0]
        waiting = asyncio.create_task(ask(member, issue(system, "exposed", "mesh")))
        listing: list[Any] = []
        while not listing:
            reply = await wire.call(hub.url, "list_approvals", {"state": "open"}, authorization=approver)
            listing = reply.result["approvals"]
            await asyncio.sleep(0.05)
        answer = {"approval": listing[0]["approval"], "verdict": "yes"}
        await wire.call(hub.url, "answer_approval", answer, authorization=approver)
        assert await waiting == "It is 7."
    assert member.messages == []


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_sdk_of_a2a_sees_a_call_that_waits_for_approval(
    system: System, wire: Wire, version: str
) -> None:
    await start_tools(system)
    text = EXPOSED.replace("  expose: true", "  approve: counter/*")
    served = await system.start_agent(ThinkingAgent(parse_agent(text, "researcher.md")), has_runs=True)
    hub = await system.start_hub(durable=True)
    async with open_client(served.url, version, system.token, streaming=True) as client:
        task = await call(client, new_text_message("How many?"))
        assert task.status.state == types.TaskState.TASK_STATE_INPUT_REQUIRED, task
        (part,) = task.status.message.parts
        assert 'counter/count with {"number":7}?' in part.text
        approval = part.text.split()[-1]
        assert f"Answer: retinue approvals approve {approval}" in part.text
        _, owner = TokenFile(system.state.keys).issue(("mesh", "approves"))
        verdict = {"approval": approval, "verdict": "yes"}
        await wire.call(hub.url, "answer_approval", verdict, authorization=f"Bearer {owner}")
        async with asyncio.timeout(WAIT_S):
            while task.status.state != types.TaskState.TASK_STATE_COMPLETED:
                await asyncio.sleep(0.05)
                task = await client.get_task(types.GetTaskRequest(id=task.id))
    assert [part.text for artifact in task.artifacts for part in artifact.parts] == ["It is 7."]
