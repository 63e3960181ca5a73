"""The fast path at a hub: the same answers as by the SDK, for its own tools and those of agents."""

from __future__ import annotations

from typing import Any

import aiohttp
import orjson
import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import Part
from retinue.core.record import Skill
from tests.mcp.clients import ACCEPT, VERSION
from tests.system import Hub, System

HANDSHAKE = "2025-11-25"
META = "io.modelcontextprotocol/"
CLAUDE: dict[str, Any] = {"elicitation": {}, "roots": {}}
"""What clients for people declare, and with a progress token in every call."""


def _agent() -> Agent:
    agent = Agent("worker", version="1.0.0")

    @agent.skill(expose=True)
    async def echo(text: str, count: int = 1) -> dict[str, str | int]:
        """Gives back what it was given."""
        return {"text": text, "count": count}

    @agent.skill(expose=True)
    async def say(text: str = "") -> str:
        return f"said: {text}"

    @agent.skill(expose=True)
    async def fails() -> str:
        raise ValueError("on purpose")

    @agent.skill(expose=True)
    async def picture() -> Any:
        return Part.image(b"\x89PNG")

    @agent.skill(expose=True)
    async def asks(ctx: Context) -> str:
        await ctx.progress(0.5, "half")
        return "reported"

    return agent


class Client:
    """Sends each request to one url twice: as it is, and so that the SDK answers it."""

    def __init__(self, http: aiohttp.ClientSession, url: str, sdk: list[int]) -> None:
        self._http = http
        self._url = url
        self._sdk = sdk
        self._session: dict[str, str] = {}
        self._capabilities: dict[str, Any] = {}

    async def open(self, era: str, capabilities: dict[str, Any]) -> None:
        self._capabilities = capabilities
        if era == VERSION:
            return
        begin = {
            "protocolVersion": era,
            "capabilities": capabilities,
            "clientInfo": {"name": "test", "version": "1"},
        }
        head = {"mcp-protocol-version": era}
        async with self._post({"id": 0, "method": "initialize", "params": begin}, head, []) as reply:
            self._session = head | {"mcp-session-id": reply.headers["mcp-session-id"]}
            await reply.read()
        async with self._post({"method": "notifications/initialized"}, self._session, []) as reply:
            assert reply.status == 202

    def _post(self, message: dict[str, Any], head: dict[str, str], more: list[tuple[str, str]]) -> Any:
        headers = [("accept", ACCEPT), ("content-type", "application/json"), *head.items(), *more]
        return self._http.post(self._url, data=orjson.dumps({"jsonrpc": "2.0", **message}), headers=headers)

    async def both(self, method: str, params: dict[str, Any], **meta: Any) -> tuple[Any, Any, bool]:
        """Status and body, those of the SDK, and whether the first answer was fast."""
        head = self._session
        if not head:
            meta |= {f"{META}protocolVersion": VERSION, f"{META}clientCapabilities": self._capabilities}
            head = {"mcp-protocol-version": VERSION, "mcp-method": method}
            head |= {"mcp-name": params["name"]} if "name" in params else {}
        message = {"id": 1, "method": method, "params": {**params, "_meta": meta}}
        before = len(self._sdk)
        async with self._post(message, head, []) as reply:
            found = reply.status, await reply.read()
        was_fast = len(self._sdk) == before
        async with self._post(message, head, [("x-twice", "1"), ("x-twice", "1")]) as reply:
            assert len(self._sdk) > before
            return found, (reply.status, await reply.read()), was_fast


@pytest.fixture
async def hub(system: System) -> Hub:
    await system.start_agent(_agent())
    return await system.start_hub()


@pytest.fixture
def sdk(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each request that reached the SDK."""
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    reached: list[int] = []
    plain = StreamableHTTPSessionManager._handle_request

    async def count(self: Any, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "POST":
            reached.append(1)
        await plain(self, scope, receive, send)

    monkeypatch.setattr(StreamableHTTPSessionManager, "_handle_request", count)
    return reached


ECHO: dict[str, Any] = {"name": "worker__echo", "arguments": {"text": "grüße", "count": 3}}
MAY_ASK = ({"name": "list_agents", "arguments": {}}, {"name": "worker__asks", "arguments": {}})
CASES: tuple[tuple[dict[str, Any], bool], ...] = (
    (ECHO, True),
    ({"name": "worker.echo", "arguments": {"text": 1}}, True),
    ({"name": "worker__say", "arguments": {}}, True),
    ({"name": "worker__fails", "arguments": {}}, True),
    ({"name": "worker__missing", "arguments": {}}, False),
)


@pytest.mark.parametrize("era", [HANDSHAKE, VERSION])
@pytest.mark.parametrize("capabilities", [{}, CLAUDE], ids=["plain", "for people"])
async def test_a_hub_answers_calls_without_a_channel_fast_and_alike(
    sdk: list[int], hub: Hub, era: str, capabilities: dict[str, Any]
) -> None:
    meta: dict[str, Any] = {"progressToken": 5} if capabilities else {}
    async with aiohttp.ClientSession() as http:
        client = Client(http, f"{hub.url}/mcp", sdk)
        await client.open(era, capabilities)
        for params, is_fast in CASES:
            found, expected, was_fast = await client.both("tools/call", params, **meta)
            assert (params["name"], was_fast) == (params["name"], is_fast)
            if was_fast:
                assert found == expected
        is_deaf = era == VERSION and not capabilities
        for params in MAY_ASK:
            assert (await client.both("tools/call", params, **meta))[2] == is_deaf
        found, expected, was_fast = await client.both("tools/list", {}, **meta)
        assert (found, was_fast) == (expected, True)


@pytest.mark.parametrize("era", [HANDSHAKE, VERSION])
async def test_a_picture_of_an_agent_reaches_a_client_that_listens(
    sdk: list[int], hub: Hub, era: str
) -> None:
    """Its skill has no output schema, so it may return parts, which only MCP carries between processes."""
    async with aiohttp.ClientSession() as http:
        client = Client(http, f"{hub.url}/mcp", sdk)
        await client.open(era, {})
        found, expected, was_fast = await client.both(
            "tools/call", {"name": "worker__picture", "arguments": {}}, progressToken=1
        )
        assert (found, was_fast) == (expected, False)
        assert b'"image"' in found[1]


async def test_a_card_that_says_nothing_of_a_channel_keeps_one(sdk: list[int], system: System) -> None:
    agent = _agent()
    agent.replace_skills(
        [
            Skill(one.id, one.description, None, one.input_schema, one.output_schema, visibility="exposed")
            for one in agent.skills
            if one.id == "echo"
        ]
    )
    await system.start_agent(agent)
    hub = await system.start_hub()
    async with aiohttp.ClientSession() as http:
        client = Client(http, f"{hub.url}/mcp", sdk)
        found, expected, was_fast = await client.both("tools/call", ECHO, progressToken=1)
        assert (found, was_fast) == (expected, False)


@pytest.mark.parametrize("era", [HANDSHAKE, VERSION])
async def test_a_fast_call_is_guarded_and_audited_as_any_other(sdk: list[int], hub: Hub, era: str) -> None:
    async with aiohttp.ClientSession() as http:
        client = Client(http, f"{hub.url}/mcp", sdk)
        await client.open(era, {})
        await client.both("tools/call", ECHO)
        fast, slow = [row for row in hub.audit.recent(10) if row["type"] == "CALL:ENDED"]
        varying = {"id", "at", "time", "timestamp", "duration_ms", "trace_id", "trace", "ts"}
        assert {k: v for k, v in fast.items() if k not in varying} == {
            k: v for k, v in slow.items() if k not in varying
        }
        deep = {"X-OpenStarry-Trace-ID": f"deep-{era}", "X-OpenStarry-Trace-Depth": 99}
        found, expected, was_fast = await client.both("tools/call", ECHO, **deep)
        assert (found, was_fast) == (expected, True)
        assert b"-33007" in found[1]
