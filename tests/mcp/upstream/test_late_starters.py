"""An imported server that starts late: told while it starts, and announced to the clients that are there."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
import orjson
import pytest
from mcp.client import Client

from retinue.settings import Settings
from retinue.settings_tables import ImportsTable, ImportTable
from tests.mcp.clients import MODES, connect
from tests.system import System

ROOT = Path(__file__).resolve().parents[3]
STARTED_WITHIN_S = 60.0


async def list_tools(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


async def find_row(client: Client, agent: str) -> Any:
    """The row of an agent in ``list_agents``."""
    found = await client.call_tool("list_agents", {"detailed": True})
    (row,) = [row for row in (found.structured_content or {})["agents"] if row["name"] == agent]
    return row


@pytest.mark.timeout(60)
@pytest.mark.parametrize("mode", MODES)
async def test_a_client_is_notified_of_the_tools_of_a_server_that_starts_late(
    system: System, tmp_path: Path, mode: str
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    text = f"open({str(gate)!r}).read()\nfrom tests.mcp.upstream.foreign_server import main\nmain('plain')"
    late = ImportTable(command=sys.executable, args=("-c", text), folder=ROOT)
    system.settings = Settings(imports=ImportsTable.model_validate({"late": late}), hub={"listing": "all"})
    hub = await system.start_hub()
    is_told = asyncio.Event()

    async def hear(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            is_told.set()

    async with (
        asyncio.timeout(STARTED_WITHIN_S),
        connect(f"{hub.url}/mcp", mode, message_handler=hear) as client,
    ):
        assert "late__shout" not in await list_tools(client)
        row = await find_row(client, "late")
        assert (row["status"], "it is starting" in row["reason"]) == ("unknown", True), orjson.dumps(row)
        if mode == "legacy":
            await asyncio.to_thread(gate.write_text, "start")
            await is_told.wait()
        else:
            async with client.listen(tools_list_changed=True) as events:
                await asyncio.to_thread(gate.write_text, "start")
                await anext(events)
        assert "late__shout" in await list_tools(client)
        result = await client.call_tool("late__shout", {"text": "at last"})
        assert result.structured_content == {"result": "AT LAST"}
        assert "reason" not in await find_row(client, "late")
