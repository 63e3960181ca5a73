"""Seed 004 over real sockets and a real pipe: declared, exposed, called (exchanges 4-1 … 4-5)."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from mcp.shared.exceptions import MCPError

from retinue.mesh.observing.events import Event, ToolCallEvent, record_calls
from tests.mcp.clients import MODES, connect, connect_stdio
from tests.requirements import requirement
from tests.seeds.seed_004 import (
    BLOCKS,
    README,
    list_blocks,
    load_block,
    load_coder,
    read_block,
    read_seeds,
    write_coder,
)
from tests.support.memory_audit import MemoryAudit
from tests.system import System, Wire

ACCEPT = "application/json, text/event-stream"
LISTS = load_block("exposure.jsonc")["mcp"]
HIDDEN = ("admin:reset", "fs:write_file", "nope")


def initialize(version: str = "2024-11-05") -> dict[str, Any]:
    client = {"name": "agent-a", "version": "1.0.0"}
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": client}
    return {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}


class Session:
    """A client of the first version, written from the seed: a body, and the session's id."""

    def __init__(self, wire: Wire, url: str, session: str) -> None:
        self._wire = wire
        self._url = url
        self._session = session

    async def ask(self, body: bytes | dict[str, Any]) -> Any:
        reply = await self._wire.post(self._url, body, accept=ACCEPT, mcp_session_id=self._session)
        assert reply.status == 200, reply
        return last_message(reply.body)


def last_message(stream: bytes) -> Any:
    """The last JSON-RPC message of an event stream."""
    lines = [line for line in stream.splitlines() if line.startswith(b"data:") and len(line) > 6]
    return orjson.loads(lines[-1].removeprefix(b"data:"))


@asynccontextmanager
async def open_session(wire: Wire, url: str) -> AsyncIterator[tuple[Session, Any]]:
    reply = await wire.post(url, initialize(), accept=ACCEPT)
    session = Session(wire, url, reply.headers["mcp-session-id"])
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    accepted = await wire.post(url, ready, accept=ACCEPT, mcp_session_id=reply.headers["mcp-session-id"])
    assert accepted.status == 202
    yield session, last_message(reply.body)


def test_the_golden_files_are_the_blocks_of_the_seed() -> None:
    """The copies of this folder and the seed's text do not drift apart."""
    copies = [read_block(name) for name in BLOCKS]
    for seed in read_seeds():
        assert list_blocks(seed) == copies


@requirement("S-04")
@requirement("S-05")
async def test_an_agent_declares_itself_over_http_as_the_seed_shows(
    system: System, wire: Wire, tmp_path: Path
) -> None:
    """The reply to ``initialize`` equals the seed's block (exchange 4-1)."""
    lists = {"expose_tools": ["fs:read_file"], "expose_resources": ["workspace"]}
    served = await system.start_agent(load_coder(tmp_path, mcp=lists).agent)
    async with open_session(wire, f"{served.url}/mcp") as (_, reply):
        assert reply == {"jsonrpc": "2.0", "id": 0, "result": load_block("initialize.jsonc")}


@requirement("S-04")
async def test_an_agent_declares_itself_over_stdio_as_the_seed_shows(tmp_path: Path) -> None:
    """The reply to ``initialize`` equals the seed's block (exchange 4-1)."""
    file = write_coder(tmp_path, mcp={"expose_tools": ["fs:read_file"], "expose_resources": ["workspace"]})
    async with connect_stdio(file) as pipe:
        reply = await pipe.ask(initialize())
        assert reply == {"jsonrpc": "2.0", "id": 0, "result": load_block("initialize.jsonc")}


@pytest.mark.parametrize("mode", MODES)
@requirement("S-02")
@requirement("S-07")
@requirement("S-08")
@requirement("S-12")
async def test_only_what_is_listed_is_exposed(system: System, tmp_path: Path, mode: str) -> None:
    """The list holds aliases, with the seed's spelling as titles (exchange 4-2)."""
    served = await system.start_agent(load_coder(tmp_path, mcp=LISTS).agent)
    async with connect(served, mode) as client:
        tools = (await client.list_tools()).tools
        assert {tool.name: tool.title for tool in tools} == {
            "fs_read_file": "fs:read_file",
            "git_status": "git:status",
        }
        assert [tool.meta["retinue/skill"] for tool in tools if tool.meta] == ["fs:read_file", "git:status"]
        for name in HIDDEN:
            with pytest.raises(MCPError) as refused:
                await client.call_tool(name)
            assert (refused.value.code, refused.value.message) == (-32602, f"Unknown tool: {name}")


@requirement("S-08")
async def test_what_is_not_listed_is_private_on_every_endpoint(
    system: System, wire: Wire, tmp_path: Path
) -> None:
    """The token of the state opens nothing that the lists hide (exchange 4-2)."""
    served = await system.start_agent(load_coder(tmp_path, mcp=LISTS).agent)
    for authorization in ({}, {"authorization": system.token}):
        for name in HIDDEN:
            reply = await wire.call(served.url, name, **authorization)
            assert (reply.error["code"], reply.error["message"]) == (-32601, f"Unknown skill: {name}")
    async with connect(served, "auto", authorization=system.token) as client:
        assert len((await client.list_tools()).tools) == 2


@requirement("S-06")
async def test_without_a_block_nothing_is_exposed(system: System, tmp_path: Path) -> None:
    """The lists of tools and resources are empty without an ``mcp`` block (exchange 4-2)."""
    served = await system.start_agent(load_coder(tmp_path).agent)
    async with connect(served, "auto") as client:
        assert (await client.list_tools()).tools == []
        assert (await client.list_resources()).resources == []


@requirement("S-08")
async def test_a_tool_in_both_lists_is_private(system: System, tmp_path: Path) -> None:
    """The private list takes precedence (specification 5, doubt 8)."""
    lists = {"expose_tools": ["admin:reset", "git:*"], "private_tools": ["admin:reset"]}
    served = await system.start_agent(load_coder(tmp_path, mcp=lists).agent)
    async with connect(served, "auto") as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["git_status"]


@requirement("S-05")
@requirement("S-09")
@requirement("S-11")
@requirement("S-12")
async def test_the_seeds_request_is_answered_with_the_seeds_response(
    system: System, wire: Wire, tmp_path: Path
) -> None:
    """The body of the seed is sent byte for byte (exchanges 4-3, 4-4)."""
    served = await system.start_agent(load_coder(tmp_path, mcp=LISTS).agent)
    async with open_session(wire, f"{served.url}/mcp") as (session, _):
        reply = await session.ask(read_block("request.json"))
        assert reply == load_block("response.json")
        assert type(reply["id"]) is int
        by_alias = load_block("request.json")
        by_alias["params"]["name"] = "fs_read_file"
        assert await session.ask(by_alias) == reply


async def test_the_seeds_request_is_answered_over_stdio(tmp_path: Path) -> None:
    """The text of the result is raw, not quoted (exchanges 4-3, 4-4)."""
    async with connect_stdio(write_coder(tmp_path, mcp=LISTS)) as pipe:
        await pipe.ask(initialize())
        await pipe.tell({"jsonrpc": "2.0", "method": "notifications/initialized"})
        reply = await pipe.ask(load_block("request.json"))
        assert reply["result"]["content"] == [{"type": "text", "text": README}]
        assert reply["id"] == 1


@requirement("S-10")
async def test_a_call_is_an_event_before_it_runs_and_a_row_of_the_audit(
    system: System, wire: Wire, tmp_path: Path
) -> None:
    """The event and the audit row have one id (exchange 4-5)."""
    target = load_coder(tmp_path, mcp=LISTS)
    events: list[Event] = []
    audit = MemoryAudit()
    ran_before: list[int] = []
    function = sys.modules["plugins"].__dict__["read_file"]

    async def read_file(path: str) -> str:
        ran_before.append(len(events))
        return str(await function(path))

    target.agent.forget_skill("fs:read_file")
    target.agent.skill("fs:read_file")(read_file)
    served = await system.start_agent(target.agent, observers=(events.append, record_calls(audit.append)))
    async with open_session(wire, f"{served.url}/mcp") as (session, _):
        await session.ask(read_block("request.json"))
    (event,) = [one for one in events if isinstance(one, ToolCallEvent)]
    assert ran_before == [1]
    row = event.as_json()
    assert row == {
        "type": "EXEC:TOOL_CALL",
        "id": event.id,
        "tool": "fs:read_file",
        "arguments": {"path": "README.md"},
        "caller": "anonymous",
        "trace_id": event.trace_id,
        "depth": 0,
        "timestamp": event.timestamp.isoformat(),
    }
    assert {one["id"] for one in audit.recent(10)} == {event.id}
