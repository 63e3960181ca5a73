"""A hub in a process of its own, whose imported servers all flood the streams of their changes at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.mcp.clients import connect, texts
from tests.mcp.upstream.foreign_server import make_server
from tests.processes.running import program
from tests.processes.test_http_flood import CHANGES, FLOODS, REASONS, end_flood, flooding
from tests.processes.test_http_limits import MIB, resident_bytes
from tests.serving import serve_app

CALLS = 50
MAX_GROWTH_BYTES = 80 * MIB
"""One event of 100 MB alone would be more."""

WITHIN_S = 60.0


async def wait_for_reasons(client: Any, wanted: Mapping[str, str]) -> None:
    """Wait until ``list_agents`` says these reasons of these agents, and "" of none."""
    rows: dict[str, str] = {}
    try:
        async with asyncio.timeout(WITHIN_S):
            while any(rows.get(name) != reason for name, reason in wanted.items()):
                found = await client.call_tool(
                    "list_agents", {"detailed": True}, meta={"retinue/whole": True}
                )
                agents = orjson.loads(found.content[0].text)["agents"]
                rows = {row["name"]: row.get("reason") or "" for row in agents}
    except TimeoutError:
        raise AssertionError(f"not as wanted: {rows}") from None


@pytest.mark.timeout(600)
async def test_servers_that_all_flood_at_once_hide_and_hold_up_no_other_and_recover(
    tmp_path: Path, port: int
) -> None:
    stop, names = tmp_path / "stop", {what: what.replace(" ", "-") for what in FLOODS}
    async with AsyncExitStack() as stack:
        good = await stack.enter_async_context(serve_app(make_server().streamable_http_app()))
        urls = {names[what]: await stack.enter_async_context(flooding(what, stop)) for what in FLOODS}
        tables = {"good": f"{good}/mcp", **urls}
        lines = [f'[imports.{name}]\nurl = "{url}"\n' for name, url in tables.items()]
        await asyncio.to_thread((tmp_path / "retinue.toml").write_text, "\n".join(lines))
        with program("hub", "--bare", "--port", str(port), cwd=tmp_path) as hub:
            url = hub.url_in("hub at")
            before = resident_bytes(hub.process.pid)
            async with connect(f"{url}/mcp") as client:
                floods = {names[what]: REASONS.get(what, CHANGES) for what in FLOODS}
                await wait_for_reasons(client, {"good": "", **floods})
                async with asyncio.timeout(WITHIN_S):
                    for number in range(CALLS):
                        said = await client.call_tool("good__shout", {"text": f"call {number}"})
                        assert texts(said) == [f"CALL {number}"]
                    for name in urls:
                        assert texts(await client.call_tool(f"{name}__echo", {"text": name})) == [name]
                assert resident_bytes(hub.process.pid) - before < MAX_GROWTH_BYTES
                end_flood(stop)
                await wait_for_reasons(client, dict.fromkeys(tables, ""))
