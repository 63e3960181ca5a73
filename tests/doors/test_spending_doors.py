"""The limits of tokens and the usage over each protocol, inside of the mesh and from outside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.usage import amount_of
from retinue.web.codec.trace import USAGE_KEY
from tests.doors.guard_doors import ENDPOINTS, GuardEndpoint, Link
from tests.mcp.clients import read_result, sessionless
from tests.requirements import requirement
from tests.system import System, Wire

MESH = [
    endpoint
    for endpoint in ENDPOINTS
    if endpoint.tells_path or endpoint.name.startswith("ctx.mcp by the URL")
]
"""The endpoints over which a skill's own call goes, with its limits."""


class Spender:
    """An agent with a skill that spends 100 tokens of its own; ``seen`` is what it might have spent."""

    def __init__(self) -> None:
        self.seen: list[int | None] = []
        self.agent = Agent("spender")

        @self.agent.skill(expose=True)
        async def spend(ctx: Context) -> str:
            self.seen.append(ctx.tokens_left)
            with ctx.reserve(tokens=150, asked="its model") as spending:
                spending.settle({"input_tokens": 60, "output_tokens": 40, "model": "m"})
            return "spent"


@requirement("S-14")
@pytest.mark.parametrize("endpoint", MESH, ids=[endpoint.name for endpoint in MESH])
async def test_a_skill_hands_its_limits_on_and_gets_the_usage_back(
    system: System, wire: Wire, endpoint: GuardEndpoint
) -> None:
    spender, caller = Spender(), Agent("caller")
    left: list[int | None] = []

    @caller.skill
    async def go(ctx: Context) -> Any:
        result = await endpoint.call(Link(ctx, "spender", "spend", urls, system, hub, wire))
        left.append(ctx.tokens_left)
        return str(getattr(result, "value", result))

    hub = await system.start_hub()
    urls = {agent.name: (await system.start_agent(agent)).url for agent in (spender.agent, caller)}
    limits = orjson.dumps({"tokens_left": 1_000}).decode()
    reply = await wire.call(urls["caller"], "go", x_retinue_trace=limits)
    assert "spent" in reply.result
    assert len(spender.seen) == 1
    assert 600 < (spender.seen[0] or 0) < 1_000
    assert left == [900]
    assert amount_of(orjson.loads(reply.headers["x-retinue-usage"])).tokens == 100


async def by_execute(wire: Wire, url: str, limits: Any) -> Any:
    reply = await wire.call(url, "spend", x_retinue_trace=orjson.dumps(limits).decode())
    return reply.json, orjson.loads(reply.headers.get("x-retinue-usage", "{}"))


async def by_rest(wire: Wire, url: str, limits: Any) -> Any:
    reply = await wire.post(f"{url}/tools/call/spend", {}, x_retinue_trace=orjson.dumps(limits).decode())
    return reply.json, orjson.loads(reply.headers.get("x-retinue-usage", "{}"))


async def by_mcp(wire: Wire, url: str, limits: Any) -> Any:
    message, headers = sessionless(
        "tools/call", {"name": "spend", "arguments": {}}, **{"X-Retinue-Trace": limits}
    )
    reply = read_result((await wire.post(f"{url}/mcp", message, **headers)).body)
    meta = reply["error"]["data"] if "error" in reply else reply["result"].get("_meta", {})
    return reply, meta.get(USAGE_KEY, {})


async def by_a2a(wire: Wire, url: str, limits: Any) -> Any:
    part = {"data": {"skill": "spend", "arguments": {}}}
    metadata = {"X-Retinue-Trace": limits}
    message = {"messageId": "1", "role": "ROLE_USER", "parts": [part], "metadata": metadata}
    request = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    reply = await wire.post(url, request)
    task = reply.json.get("result", {}).get("task", {})
    return reply.json, task.get("metadata", {}).get(USAGE_KEY, {})


async def by_message(wire: Wire, url: str, limits: Any) -> Any:
    message = {
        "performative": "TASK_REQUEST",
        "payload": {"task_type": "spend"},
        "trace": {"X-Retinue-Trace": limits},
    }
    reply = await wire.post(f"{url}/messages", message)
    return reply.json, reply.json["payload"].get("usage", {})


@pytest.mark.parametrize("send", [by_execute, by_rest, by_mcp, by_a2a, by_message])
async def test_a_caller_from_outside_sets_limits_and_reads_the_usage(
    system: System, wire: Wire, send: Callable[[Wire, str, Any], Awaitable[Any]]
) -> None:
    spender = Spender()
    url = (await system.start_agent(spender.agent)).url
    reply, usage = await send(wire, url, {"tokens_left": 300})
    assert spender.seen == [300]
    assert (usage["input_tokens"], usage["output_tokens"], usage["model"]) == (60, 40, "m")
    assert "spent" in orjson.dumps(reply).decode()
    refused, usage = await send(wire, url, {"tokens_left": 149})
    assert "its model needs 150 tokens" in orjson.dumps(refused).decode()
    assert usage == {}
