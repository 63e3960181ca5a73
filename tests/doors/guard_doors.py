"""The endpoints through which agents of the guard's matrix call each other; ``ENDPOINTS`` lists them."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import orjson

from retinue.authoring.context import Context
from retinue.core.errors import RemoteFaultError
from retinue.messages.client import value_of as value_of_reply
from retinue.messages.codec.envelope import parse_envelope
from retinue.storage.state import HUB_VARIABLE
from retinue.web.codec.jsonrpc import ErrorReply, find_guard_error, parse_response
from tests.a2a.wire import find_facts, read_events
from tests.mcp.clients import read_result, sessionless
from tests.recording import Recording
from tests.system import WAIT_S, Hub, System, Wire


@dataclass(frozen=True, slots=True)
class Link:
    """One call from inside a skill: of ``skill`` at ``agent``; ``urls`` are those of all agents."""

    ctx: Context
    agent: str
    skill: str
    urls: Mapping[str, str]
    system: System
    hub: Hub
    wire: Wire


class GuardEndpoint(Protocol):
    """A way from one agent's skill to the next agent's."""

    @property
    def name(self) -> str: ...

    @property
    def hops(self) -> int:
        """How much deeper the next skill runs."""

    @property
    def tells_path(self) -> bool:
        """Whether what it says of the trace is signed, and so believed with the path."""

    async def call(self, link: Link) -> Any:
        """The value; raises what the call failed with, a GuardError where the guard refused."""


class ExecuteGuard:
    """``ctx.call``: the hub's ``/execute``, then the agent's."""

    name = "execute"
    hops = 1
    tells_path = True

    async def call(self, link: Link) -> Any:
        return await link.ctx.call(link.skill)


class ServerGuard:
    """``ctx.mcp``: the next agent as an MCP server, by its name."""

    name = "ctx.mcp"
    hops = 1
    tells_path = True

    async def call(self, link: Link) -> Any:
        async with link.ctx.mcp(link.agent) as server:
            return await server.call_tool(link.skill)


class ServerUrlGuard:
    """``ctx.mcp`` with the URL of the next agent, or of the hub. What is sent to a URL is never signed."""

    hops = 1
    tells_path = False

    def __init__(self, name: str, url: str, tool: str) -> None:
        self.name = name
        self._url = url
        self._tool = tool

    async def call(self, link: Link) -> Any:
        url = self._url.format(agent=link.urls[link.agent], hub=link.hub.url)
        headers = {"authorization": link.system.token}
        async with link.ctx.mcp(url, headers=headers) as server:
            return await server.call_tool(self._tool.format(agent=link.agent, skill=link.skill))


class WorkflowGuard:
    """A step of a workflow, in a branch; the run itself is a hop."""

    name = "workflow step"
    hops = 2
    tells_path = True

    async def call(self, link: Link) -> Any:
        steps = [{"id": "p", "parallel": {"mode": "all"}, "steps": [{"id": "go", "skill": link.skill}]}]
        arguments = {"workflow": {"name": "onward", "steps": steps}, "input": {}}
        found = await link.ctx.call("orchestrate_workflow", arguments)
        return found["output"]["go"]


class SeedPeerGuard:
    """``/execute`` by a client written from seed 004: id and depth, nothing signed, no path."""

    name = "execute without a signature"
    hops = 1
    tells_path = False

    async def call(self, link: Link) -> Any:
        trace = link.ctx.trace
        headers = {"x_openstarry_trace_id": trace.id, "x_openstarry_trace_depth": str(trace.depth + 1)}
        reply = await link.wire.call(link.urls[link.agent], link.skill, **headers)
        return value_of(reply.body)


class RestGuard:
    """The REST route of seed 003 at the agent, by a client that knows id and depth alone."""

    name = "REST"
    hops = 1
    tells_path = False

    async def call(self, link: Link) -> Any:
        trace = link.ctx.trace
        headers = {"x_openstarry_trace_id": trace.id, "x_openstarry_trace_depth": str(trace.depth + 1)}
        reply = await link.wire.post(f"{link.urls[link.agent]}/tools/call/{link.skill}", {}, **headers)
        found = orjson.loads(reply.body)
        if reply.status != 200:
            code, data = found.get("code", -32603), found.get("data")
            refusal = find_guard_error(code, found["detail"], data)
            raise refusal or RemoteFaultError(link.agent, code, found["detail"], data)
        return found["result"]


class McpRelayGuard:
    """MCP to the next agent through the hub's relay, by a client that knows id and depth alone."""

    name = "MCP through the relay"
    hops = 1
    tells_path = False

    async def call(self, link: Link) -> Any:
        return await call_tool(link, f"{link.hub.url}/agents/{link.agent}/mcp", link.skill)


class McpHubGuard:
    """The hub's own MCP, with progress wanted: the hub calls the agent over MCP as well."""

    name = "MCP of the hub"
    hops = 1
    tells_path = False

    async def call(self, link: Link) -> Any:
        return await call_tool(link, f"{link.hub.url}/mcp", f"{link.agent}__{link.skill}", progressToken="p")


class McpStdioGuard:
    """MCP over stdio, by ``retinue mcp`` as clients start it: one program, and so the hub's own tools."""

    name = "MCP over stdio"
    hops = 1
    tells_path = False

    def __init__(self) -> None:
        self._clients: WeakKeyDictionary[Recording, asyncio.Task[StdioClient]] = WeakKeyDictionary()

    async def call(self, link: Link) -> Any:
        mesh = link.system.recording
        if mesh not in self._clients:
            opening = link.system.stack.enter_async_context(open_stdio(link.hub.url))
            self._clients[mesh] = asyncio.create_task(opening)
        client = await self._clients[mesh]
        depth = link.ctx.trace.depth + 1
        meta = {"X-OpenStarry-Trace-ID": link.ctx.trace.id, "X-OpenStarry-Trace-Depth": depth}
        tool = {"name": f"{link.agent}__{link.skill}", "arguments": {}}
        message, _ = sessionless("tools/call", tool, **meta)
        return value_of_tool(await client.ask(message))


class A2aGuard:
    """A message of A2A to the next agent, by a client that knows id and depth alone; at an agent or a hub."""

    hops = 1
    tells_path = False

    def __init__(self, name: str, url: str, method: str) -> None:
        self.name = name
        self._url = url
        self._method = method

    async def call(self, link: Link) -> Any:
        url = self._url.format(agent=link.urls[link.agent], hub=link.hub.url, name=link.agent)
        trace = {
            "X-OpenStarry-Trace-ID": link.ctx.trace.id,
            "X-OpenStarry-Trace-Depth": link.ctx.trace.depth + 1,
        }
        is_old = "/" in self._method
        part = {"data": {"skill": link.skill, "arguments": {}}} | ({"kind": "data"} if is_old else {})
        message = {
            "messageId": str(uuid.uuid4()),
            "role": "user" if is_old else "ROLE_USER",
            "parts": [part],
            "metadata": trace,
        }
        request = {"jsonrpc": "2.0", "id": 1, "method": self._method, "params": {"message": message}}
        reply = await link.wire.post(url, request, authorization=link.system.token)
        if reply.headers["content-type"] == "text/event-stream":
            return value_of_events(read_events(reply.body))
        if "error" in reply.json:
            error = reply.json["error"]
            raise refusal_of(error["code"], error["message"], find_facts(error.get("data")))
        return value_of_task(reply.result["task"])


def value_of_task(task: Any) -> Any:
    """The text of a task's result; raises its error."""
    if task["status"]["state"] in ("TASK_STATE_FAILED", "failed"):
        facts = dict(task["status"]["message"]["metadata"]["error"])
        message = facts.pop("message")
        raise refusal_of(facts.pop("code", -32603), message, facts)
    return task["artifacts"][0]["parts"][0]["text"]


def value_of_events(events: list[Any]) -> Any:
    """The text of the result in a stream of 0.3; raises its error."""
    artifacts = [event["artifact"] for event in events if event["kind"] == "artifact-update"]
    return value_of_task({"status": events[-1]["status"], "artifacts": artifacts})


def refusal_of(code: int, message: str, facts: Any) -> Exception:
    return find_guard_error(code, message, facts) or RemoteFaultError("peer", code, message, facts)


class StdioClient:
    """A client with any number of requests at once; ``read`` takes the messages of the program."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._waiting: dict[str, asyncio.Future[Any]] = {}

    async def ask(self, message: dict[str, Any]) -> Any:
        message_id = f"message {len(self._waiting)}"
        answer = self._waiting[message_id] = asyncio.get_running_loop().create_future()
        assert self._process.stdin is not None
        self._process.stdin.write(orjson.dumps({**message, "id": message_id}) + b"\n")
        await self._process.stdin.drain()
        return await answer

    async def read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            found = orjson.loads(line)
            if "method" not in found:
                self._waiting[found["id"]].set_result(found)


@asynccontextmanager
async def open_stdio(hub_url: str) -> AsyncIterator[StdioClient]:
    """A client of ``retinue mcp`` while inside; the program ends when its input does."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "retinue", "mcp"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, HUB_VARIABLE: hub_url},
    )
    client = StdioClient(process)
    reading = asyncio.create_task(client.read())
    try:
        yield client
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(WAIT_S):
            assert await process.wait() == 0
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        if process.returncode is None:
            process.kill()
            await process.wait()


class MessagesGuard:
    """A TASK_REQUEST to the next agent's ``/messages``, by a client that knows id and depth alone."""

    name = "messages"
    hops = 1
    tells_path = False

    async def call(self, link: Link) -> Any:
        trace = link.ctx.trace
        headers = {"x_openstarry_trace_id": trace.id, "x_openstarry_trace_depth": str(trace.depth + 1)}
        message = {"performative": "TASK_REQUEST", "payload": {"task_type": link.skill}}
        reply = await link.wire.post(f"{link.urls[link.agent]}/messages", message, **headers)
        return value_of_message(reply.json, link)


class HubMessagesGuard:
    """A TASK_REQUEST through the hub, with the trace in the message itself."""

    name = "messages through the hub"
    hops = 1
    tells_path = False

    async def call(self, link: Link) -> Any:
        depth = link.ctx.trace.depth + 1
        message = {
            "performative": "TASK_REQUEST",
            "receiver": {"agent_id": link.agent},
            "payload": {"task_type": link.skill},
            "trace": {"X-OpenStarry-Trace-ID": link.ctx.trace.id, "X-OpenStarry-Trace-Depth": depth},
        }
        url, headers = f"{link.hub.url}/messages", {"authorization": link.system.token}
        return value_of_message((await link.wire.post(url, message, **headers)).json, link)


def value_of_message(reply: Any, link: Link) -> Any:
    """The value of a reply to a task; raises its error."""
    return value_of_reply(parse_envelope(reply), link.agent, link.skill)


async def call_tool(link: Link, url: str, tool: str, **meta: Any) -> Any:
    """One tool call of the sessionless era, one hop deeper; the trace in ``_meta`` and as headers."""
    depth = link.ctx.trace.depth + 1
    meta |= {"X-OpenStarry-Trace-ID": link.ctx.trace.id, "X-OpenStarry-Trace-Depth": depth}
    message, headers = sessionless("tools/call", {"name": tool, "arguments": {}}, **meta)
    headers |= {"x_openstarry_trace_id": link.ctx.trace.id, "authorization": link.system.token}
    return value_of_tool(read_result((await link.wire.post(url, message, **headers)).body))


def value_of_tool(reply: Any) -> Any:
    """The text of a tool's result; raises its error."""
    if "error" in reply:
        return value_of(orjson.dumps(reply))
    assert not reply["result"].get("isError"), reply
    return reply["result"]["content"][0]["text"]


def value_of(body: bytes) -> Any:
    """The value of a JSON-RPC reply; raises its error."""
    found = parse_response(body)
    if isinstance(found, ErrorReply):
        refusal = find_guard_error(found.code, found.message, found.data)
        raise refusal or RemoteFaultError("peer", found.code, found.message, found.data)
    return found.value


ENDPOINTS: tuple[GuardEndpoint, ...] = (
    ExecuteGuard(),
    ServerGuard(),
    ServerUrlGuard("ctx.mcp by the URL of the agent", "{agent}/mcp", "{skill}"),
    ServerUrlGuard("ctx.mcp by the URL of the hub", "{hub}/mcp", "{agent}__{skill}"),
    WorkflowGuard(),
    SeedPeerGuard(),
    RestGuard(),
    McpRelayGuard(),
    McpHubGuard(),
    McpStdioGuard(),
    A2aGuard("A2A", "{agent}", "SendMessage"),
    A2aGuard("A2A through the hub", "{hub}/agents/{name}", "SendMessage"),
    A2aGuard("A2A 0.3, a stream", "{agent}", "message/stream"),
    MessagesGuard(),
    HubMessagesGuard(),
)
