"""A2A tasks whose call waits for approval: the state says so, and an approver answers in the conversation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retinue import Agent
from retinue.core.approval_lines import read_approval_line, render_open, render_over
from retinue.markdown.agent import ThinkingAgent
from retinue.markdown.definition import parse_agent
from retinue.web.issued_tokens import TokenFile
from tests.support.thinking import ScriptedModel, say, use
from tests.system import WAIT_S, Hub, Reply, System, Wire

FILE = """\
---
name: writer
description: Writes files.
tools: write_file
retinue:
  approve: files/*
---
You write.
"""


class Desk:
    """A hub with the agent ``writer`` whose model writes one file, which needs approval."""

    def __init__(self, system: System, wire: Wire, hub: Hub, url: str, written: list[str]) -> None:
        self.system = system
        self.wire = wire
        self.hub = hub
        self.url = url
        self.written = written

    def token(self, *scopes: str) -> str:
        return f"Bearer {TokenFile(self.system.state.keys).issue(scopes)[1]}"

    async def send(self, token: str, *parts: Any, **fields: Any) -> Reply:
        sent = {"messageId": f"m{fields}{parts}", "role": "ROLE_USER", "parts": list(parts)}
        message = {**sent, **fields}
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
        return await self.wire.post(self.url, body, authorization=token, a2a_version="1.0")

    async def until(self, token: str, task_id: str, state: str) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": task_id}}
        async with asyncio.timeout(WAIT_S):
            while True:
                task = (await self.wire.post(self.url, body, authorization=token, a2a_version="1.0")).result
                if task["status"]["state"] == state:
                    return task
                await asyncio.sleep(0.02)


async def open_desk(system: System, wire: Wire, place: str) -> Desk:
    written: list[str] = []
    files = Agent("files", version="1.0.0")

    @files.skill
    async def write_file(path: str) -> str:
        """Writes a file."""
        written.append(path)
        return "written"

    model = ScriptedModel(use(("files__write_file", {"path": "/etc/motd"})), say("It is done."))
    await system.start_agent(model.agent)
    await system.start_agent(files)
    served = await system.start_agent(ThinkingAgent(parse_agent(FILE, "writer.md")), has_runs=True)
    hub = await system.start_hub(durable=True)
    url = f"{hub.url}/agents/writer" if place == "hub" else served.url
    return Desk(system, wire, hub, url, written)


@pytest.mark.parametrize("place", ["hub", "agent"])
async def test_the_state_tells_the_call_and_how_to_answer(system: System, wire: Wire, place: str) -> None:
    desk = await open_desk(system, wire, place)
    mine = desk.token("mesh")
    task = (await desk.send(mine, {"text": "Write it"})).result["task"]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED", task
    text = task["status"]["message"]["parts"][0]["text"]
    assert 'files/write_file with {"path":"/etc/motd"}?' in text
    approval = task["status"]["message"]["metadata"]["approval"]
    assert text.endswith(f"Answer: retinue approvals approve {approval}")
    again = (await desk.send(mine, {"text": "yes"}, taskId=task["id"])).result["task"]
    assert again["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert again["status"]["message"]["parts"][0]["text"].startswith("This answer does not count. ")
    assert desk.written == []
    boss = desk.token("mesh", "approves")
    arguments = {"approval": approval, "verdict": "yes"}
    answered = await wire.call(desk.hub.url, "answer_approval", arguments, authorization=boss)
    assert answered.result["state"] == "approved"
    ended = await desk.until(mine, task["id"], "TASK_STATE_COMPLETED")
    assert ended["artifacts"][0]["parts"][0]["text"] == "It is done."
    assert desk.written == ["/etc/motd"]


@pytest.mark.parametrize(("answer", "writes"), [("yes", True), ("no, not there", False)])
async def test_an_approver_answers_in_the_conversation_at_the_hub(
    system: System, wire: Wire, answer: str, writes: bool
) -> None:
    desk = await open_desk(system, wire, "hub")
    boss = desk.token("mesh", "approves")
    task = (await desk.send(boss, {"text": "Write it"})).result["task"]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED", task
    await desk.send(boss, {"text": answer}, taskId=task["id"])
    await desk.until(boss, task["id"], "TASK_STATE_COMPLETED")
    assert bool(desk.written) is writes


def test_lines_about_approvals_are_read_back_and_no_others() -> None:
    line = render_open("think/turn-1/answer-2", 'a/b with {"x":"\n"}?', "0a1b")
    read = read_approval_line(line)
    assert read is not None
    assert (read.step, read.approval) == ("think/turn-1/answer-2", "0a1b")
    for late in (True, False):
        over = read_approval_line(render_over("think/turn-1/answer-2", is_late=late))
        assert over is not None
        assert over.approval is None
    assert read_approval_line("think: 50% waits for approval of") is None
