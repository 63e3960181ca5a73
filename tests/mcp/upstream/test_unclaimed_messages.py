"""What a server says that belongs to no call: log lines reach the hub's log, odd messages cost nothing."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import pytest
from structlog.testing import capture_logs

from retinue.mcp.stdio.server_program import ServerProgram
from retinue.mcp.upstream.flood import MAX_LINES
from retinue.mcp.upstream.imports.server import ImportSpec
from retinue.mesh.channel import NullChannel
from tests.mcp.upstream.test_imports import Imports, Person, running

pytestmark = pytest.mark.timeout(60)


def log_line(text: str, level: Any = "info") -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "method": "notifications/message",
        "params": {"level": level, "data": text},
    }


def talking(*messages: Any) -> ImportSpec:
    command = [sys.executable, "-m", "tests.mcp.upstream.talking_server", json.dumps(messages)]
    return ImportSpec("talker", lambda: ServerProgram("talker", command, {}, own=os.environ), "a program")


async def talk(imports: Imports, *channels: NullChannel) -> None:
    """Let the server talk while a call of each of these channels is in flight."""
    held = [asyncio.create_task(imports.call("hold", None, channel)) for channel in channels]
    server = imports.servers.find("talker")
    assert server is not None
    session = await server.open_session()
    while session.calls_in_flight < len(channels):
        await asyncio.sleep(0)
    assert (await imports.call("talk")).value == "done"
    assert (await imports.call("let_go")).value == "done"
    assert [(await one).value for one in held] == ["done"] * len(channels)


async def test_a_log_line_with_several_calls_in_flight_is_written_to_the_log_of_the_hub() -> None:
    ada, bob = Person("Ada"), Person("Bob")
    with capture_logs() as lines:
        async with running(talking(log_line("disk is nearly full", "warning"))) as imports:
            await imports.until("talker", lambda one: one.health == "healthy")
            await talk(imports, ada, bob)
    (line,) = [one for one in lines if one["event"] == "server log"]
    assert line == {
        "event": "server log",
        "log_level": "warning",
        "server": "talker",
        "line": "disk is nearly full",
    }
    assert ada.said == bob.said == []


async def test_a_log_line_while_a_caller_without_log_lines_waits_is_written_to_the_log_of_the_hub() -> None:
    with capture_logs() as lines:
        async with running(talking(log_line("working"))) as imports:
            await imports.until("talker", lambda one: one.health == "healthy")
            await talk(imports)
    assert [one["line"] for one in lines if one["event"] == "server log"] == ["working"]


async def test_log_lines_without_end_leave_a_hundred_a_minute_in_the_log_of_the_hub() -> None:
    with capture_logs() as lines:
        async with running(talking(*(log_line(str(n)) for n in range(3 * MAX_LINES)))) as imports:
            await imports.until("talker", lambda one: one.health == "healthy")
            await talk(imports)
    assert [one["line"] for one in lines if one["event"] == "server log"] == [
        str(n) for n in range(MAX_LINES)
    ]
    told = [one for one in lines if one["event"] == "further log lines of this minute are left out"]
    assert [one["server"] for one in told] == ["talker"]


ODD = {
    "an id that is a list": {"jsonrpc": "2.0", "id": [1], "method": "ping"},
    "a response to a list": {"jsonrpc": "2.0", "id": [1], "result": {}},
    "a response to an object": {"jsonrpc": "2.0", "id": {}, "error": {"code": [], "message": 1}},
    "a token that is a list": {
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": {"progressToken": [1], "progress": {}, "total": []},
    },
    "a level that is a list": log_line("odd", ["info"]),
    "a cancelled list": {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": []}},
    "a subscription that is an object": {
        "jsonrpc": "2.0",
        "method": "notifications/tools/list_changed",
        "params": {"_meta": {"io.modelcontextprotocol/subscriptionId": {}}},
    },
    "a method that is a number": {"jsonrpc": "2.0", "id": 1, "method": 7},
    "parameters that are a list": {"jsonrpc": "2.0", "method": "notifications/message", "params": [1]},
}


@pytest.mark.parametrize("name", ODD)
async def test_a_message_of_another_form_than_that_of_mcp_costs_the_server_no_session(name: str) -> None:
    async with running(talking(ODD[name])) as imports:
        await imports.until("talker", lambda one: one.health == "healthy")
        for _ in range(2):
            assert (await imports.call("talk", within_s=5)).value == "done"
        found = imports.directory.find("talker")
        assert found is not None
        assert found.health == "healthy"
