"""A process without memory for a request refuses it with 503 at each endpoint, so that it is sent again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from retinue import Agent
from retinue.storage.state import State
from tests.system import System, Wire, open_system

TOO_MUCH = "more than fits"
MODERN = {
    "accept": "application/json, text/event-stream",
    "mcp-protocol-version": "2026-07-28",
    "mcp-method": "tools/call",
    "mcp-name": "echo",
}
ENDPOINTS = [
    ("/execute", "code"),
    ("/agents/parrot/execute", "code"),
    ("/agents/parrot", "code"),
    ("/", "code"),
    ("/tools/call/list_agents", "detail"),
    ("/search", "message"),
    ("/messages", "detail"),
    ("/mcp", "detail"),
    ("/agents/parrot/mcp", "detail"),
]


@pytest.fixture
def _short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = orjson.loads

    def fail(text: bytes | str) -> Any:
        if TOO_MUCH.encode() in (text if isinstance(text, bytes) else text.encode()):
            raise orjson.JSONDecodeError("Not enough memory to allocate buffer for parsing", "", 0)
        return loads(text)

    monkeypatch.setattr(orjson, "loads", fail)


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    async with open_system(State(tmp_path)) as system:
        yield system


def _make_parrot() -> Agent:
    agent = Agent("parrot", version="1.0.0")

    @agent.skill(expose=True)
    async def echo(text: str) -> str:
        """Repeats a text."""
        return text

    @agent.skill(expose=True)
    async def boast() -> str:
        """Says much."""
        return TOO_MUCH

    return agent


@pytest.mark.usefixtures("_short_memory")
@pytest.mark.parametrize(("path", "form"), ENDPOINTS)
async def test_a_request_that_cannot_be_read_is_answered_with_503_and_retry_after(
    system: System, path: str, form: str
) -> None:
    await system.start_agent(_make_parrot())
    hub = await system.start_hub()
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"text": TOO_MUCH}}
    async with aiohttp.ClientSession() as session:
        sent = session.post(f"{hub.url}{path}", json=body, headers=MODERN if path.endswith("/mcp") else None)
        async with sent as answer:
            headers, reply = answer.headers, await answer.json()
    assert (answer.status, headers["retry-after"]) == (503, "1")
    if form == "code":
        assert reply["error"]["code"] == -33029
        assert "no memory to read a message of" in reply["error"]["message"]
    elif form == "message":
        assert "no memory to read a message of" in reply["error"]["message"]
    else:
        assert reply["detail"].startswith("Busy: no memory to read a message of")
        assert reply["data"]["type"] == "out_of_memory"


@pytest.mark.usefixtures("_short_memory")
async def test_a_reply_that_cannot_be_read_is_no_refusal_because_its_call_has_run(
    system: System, wire: Wire
) -> None:
    await system.start_agent(_make_parrot())
    hub = await system.start_hub()
    reply = await wire.call(f"{hub.url}/agents/parrot", "boast", authorization=system.token)
    error = reply.error["data"]
    assert (error["type"], error["sent"]) == ("agent_unreachable", True)
    assert "no memory here to read its reply" in reply.error["message"]
