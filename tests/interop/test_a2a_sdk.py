"""The client of the A2A SDK, for 1.x and for 0.3, calls every skill of the agents that are shipped."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.helpers import get_artifact_text, new_text_message
from a2a.types import a2a_pb2 as types
from google.protobuf.json_format import MessageToDict, ParseDict  # type: ignore[import-untyped]

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue_testwriter.builder import agent as build_agent
from retinue_testwriter.planner import agent as plan_agent
from retinue_testwriter.tester import agent as test_agent
from tests.system import System, Wire

VERSIONS = ("1.0", "0.3")


@asynccontextmanager
async def open_client(url: str, version: str, token: str, *, streaming: bool) -> AsyncIterator[Any]:
    """A client that the SDK makes from the served card, of which one version's interface is left."""
    async with httpx.AsyncClient(headers={"authorization": token}, timeout=120) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        interfaces = [one for one in card.supported_interfaces if one.protocol_version.startswith(version)]
        assert interfaces, card.supported_interfaces
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(interfaces)
        client = ClientFactory(ClientConfig(httpx_client=http, streaming=streaming)).create(card)
        yield client


def message_for(skill: str, arguments: dict[str, Any]) -> types.Message:
    """A message that names a skill in a data part."""
    part = {"data": {"skill": skill, "arguments": arguments}}
    message = types.Message()
    ParseDict({"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": [part]}, message)
    return message


async def call(client: Any, message: types.Message) -> types.Task:
    """The task at the end of a request, put together from what arrives."""
    task = types.Task()
    async for event in client.send_message(types.SendMessageRequest(message=message)):
        kind = event.WhichOneof("payload")
        if kind == "task":
            task.CopyFrom(event.task)
        elif kind == "status_update":
            task.status.CopyFrom(event.status_update.status)
        elif kind == "artifact_update":
            task.artifacts.append(event.artifact_update.artifact)
    return task


PLAN: dict[str, Any] = {"requirements": "colorsys"}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
async def test_the_sdks_client_calls_every_skill_of_the_test_writers(
    system: System, version: str, streaming: bool
) -> None:
    given: dict[str, Any] = {"create_plan": PLAN}
    for agent in (plan_agent, build_agent, test_agent):
        served = await system.start_agent(agent)
        async with open_client(served.url, version, system.token, streaming=streaming) as client:
            for skill in agent.skills:
                task = await call(client, message_for(skill.id, given[skill.id]))
                assert task.status.state == types.TaskState.TASK_STATE_COMPLETED, task
                result = read_result(task)
                if skill.id == "create_plan":
                    given["generate_code"] = {"plan": result["plan"]}
                elif skill.id == "generate_code":
                    given["review_code"] = {"code": result["code"]}


def read_result(task: types.Task) -> Any:
    """The data of the only artifact."""
    (artifact,) = task.artifacts
    return MessageToDict(artifact.parts[0])["data"]


STEP = {"name": "w", "steps": [{"id": "a", "skill": "shout", "with": {"text": "hi"}}]}
STORED = "name: stored\nsteps:\n  - {id: a, skill: shout, with: {text: hi}}\n"
WAITING = {"name": "wait", "steps": [{"id": "w", "wait_for": {"topic": "go"}}]}
TASK = {"id": "t", "prompt": "hi"}
MESSAGE = {
    "performative": "TASK_REQUEST",
    "receiver": "echo",
    "payload": {"task_type": "shout", "task_parameters": {"text": "hi"}},
}

HUB_CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("list_agents", {}),
    ("list_approvals", {}),
    ("explain_policies", {"skill": "shout"}),
    ("find_skills", {"query": "shout a text"}),
    ("show_agent", {"name": "echo"}),
    ("call_skill", {"skill": "shout", "arguments": {"text": "hi"}}),
    ("call_read_only_skill", {"skill": "shout", "arguments": {"text": "hi"}}),
    ("rate_call", {"skill": "shout", "verdict": "good"}),
    ("show_history", {}),
    ("list_wishes", {}),
    ("forget_history", {}),
    ("show_receipts", {}),
    ("publish_receipts", {}),
    ("map_agents", {}),
    ("refresh_agents", {}),
    ("query_capabilities", {"query_type": "summary"}),
    ("get_capabilities", {}),
    ("send_message", {"message": MESSAGE}),
    ("orchestrate", {"prompt": "hi"}),
    ("orchestrate_parallel", {"prompt": "hi", "agents": ["doer"]}),
    ("orchestrate_workflow", {"workflow": STEP, "input": {}}),
    ("execute_code", {"prompt": "hi"}),
    ("execute_task", {"task": TASK}),
    ("clear_cache", {}),
    ("check_workflow", {"text": STORED}),
    ("store_workflow", {"text": STORED}),
    ("list_workflows", {}),
    ("add_schedule", {"workflow": "stored", "schedule": {"every": "1d"}}),
    ("list_schedules", {}),
    ("change_schedule", {"schedule": "stored", "change": "remove"}),
    ("start_run", {"workflow": STEP, "input": {}, "run": "r"}),
    ("follow_run", {"run": "r", "wait_s": 5}),
    ("show_run", {"run": "r"}),
    ("list_runs", {}),
    ("rerun_run", {"run": "r", "from_step": "a", "new_run": "again"}),
    ("start_run", {"workflow": WAITING, "input": {}, "run": "waits"}),
    ("signal_run", {"run": "waits", "topic": "go", "value": 1}),
    ("start_run", {"workflow": WAITING, "input": {}, "run": "stops"}),
    ("cancel_run", {"run": "stops"}),
    ("resume_run", {"run": "stops"}),
    ("list_calls", {}),
    ("show_trace", {"trace": "0" * 32}),
    ("list_imports", {}),
    ("show_mesh", {}),
)
"""Every skill of the hub with arguments; a later call uses what an earlier one has made."""


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_sdks_client_calls_every_skill_of_the_hub(system: System, version: str) -> None:
    echo = Agent("echo", version="1.0.0")

    @echo.skill(read_only=True)
    async def shout(text: str) -> str:
        """Says it louder."""
        return text.upper()

    doer = Agent("doer", version="1.0.0")

    @doer.skill(roles=["plan", "execute", "review"])
    async def do(prompt: str) -> str:
        """Does it."""
        return f"done: {prompt}"

    await system.start_agent(echo)
    await system.start_agent(doer)
    hub = await system.start_hub()
    # these need a run that ended at a limit, or that waits: tests/doors/test_think_runs.py, test_approvals.py
    # others need the token of the owner: tests/doors/test_policies.py, tests/dashboard/test_policy_pages.py
    others = {"extend_run", "show_approval", "answer_approval", "approve_similar", "list_policies"}
    others |= {"check_policies", "replay_policies", "suggest_policies", "set_policy_mode"}
    called = {skill for skill, _ in HUB_CALLS} | others
    assert called == {one.id for one in hub.mesh.hub.agent.skills}
    async with open_client(hub.url, version, system.token, streaming=False) as client:
        for skill, arguments in HUB_CALLS:
            task = await call(client, message_for(skill, arguments))
            assert task.status.state == types.TaskState.TASK_STATE_COMPLETED, (skill, task)
            assert task.artifacts[0].parts, skill
    async with open_client(f"{hub.url}/agents/echo", version, system.token, streaming=True) as client:
        task = await call(client, new_text_message("hush", role=types.Role.ROLE_USER))
        assert get_artifact_text(task.artifacts[0]) == "HUSH"


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_sdks_client_answers_questions_cancels_and_follows(system: System, version: str) -> None:
    asking = Agent("asking", version="1.0.0")

    @asking.skill
    async def ask(ctx: Context) -> dict[str, Any]:
        """Asks for an object."""
        form = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
        return {"got": await ctx.elicit("Which size?", form)}

    served = await system.start_agent(asking)
    async with open_client(served.url, version, system.token, streaming=True) as client:
        task = await call(client, message_for("ask", {}))
        assert task.status.state == types.TaskState.TASK_STATE_INPUT_REQUIRED
        fields = {"messageId": "a", "role": "ROLE_USER", "taskId": task.id, "parts": [{"data": {"size": 4}}]}
        answered = await call(client, ParseDict(fields, types.Message()))
        assert read_result(answered) == {"got": {"size": 4}}
        found = await client.get_task(types.GetTaskRequest(id=task.id))
        assert found.status.state == types.TaskState.TASK_STATE_COMPLETED
        again = await call(client, message_for("ask", {}))
        canceled = await client.cancel_task(types.CancelTaskRequest(id=again.id))
        assert canceled.status.state == types.TaskState.TASK_STATE_CANCELED
        card = await client.get_extended_agent_card(types.GetExtendedAgentCardRequest())
        assert card.name == "asking"


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_sdks_types_read_every_answer_whole(system: System, wire: Wire, version: str) -> None:
    """Nothing that the endpoint writes is unknown to the protocol's own definition."""
    agent = Agent("plain", version="1.0.0")

    @agent.skill
    async def measure(text: str) -> dict[str, int]:
        """Counts."""
        return {"length": len(text)}

    served = await system.start_agent(agent)
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "SendMessage",
        "params": {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "four"}]}},
    }
    result = (await wire.post(served.url, body, a2a_version=version)).result
    ParseDict(result, types.SendMessageResponse())
    listed = (
        await wire.post(served.url, {**body, "method": "ListTasks", "params": {}}, a2a_version=version)
    ).result
    ParseDict(listed, types.ListTasksResponse())
