"""A hub with fifty imported servers, ten of them broken, each in another way."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import orjson
import pytest
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from retinue.settings import Settings
from retinue.settings_tables import ImportsTable, ImportTable
from retinue.storage.state import State
from tests.mcp.clients import connect, texts
from tests.serving import serve_app
from tests.system import Hub, open_system

GOOD = 40
ROUNDS = 3
MOST = 2.0
"""How many times the processor time of a batch the hub may take beside the broken servers."""

CALL_S, CALLS = 1.2, 6
"""Time-outs of a second and more, and as many as degrade an agent."""

SLOW_S = 300
START_S = 60.0
FLOODING = "tests.mcp.upstream.flooding_server"
FLOODS = ("junk", "flood")
PYTHON = sys.executable
ROOT = Path(__file__).resolve().parents[2]

_HANDSHAKE = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked or asked["method"] == "tools/call":
        continue
    info = {"serverInfo": {"name": "x"}, "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
    odd = {"name": "odd", "inputSchema": {"type": 7}}
    fine = {"name": "fine", "inputSchema": {"type": "object"}}
    tools = {"tools": [odd, fine]}
    result = info if asked["method"] == "initialize" else tools
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


def broken(folder: Path, dead_port: int, failing: str) -> dict[str, ImportTable]:
    """Ten servers that do not work, by what is wrong with them."""

    def python(text: str, **more: Any) -> ImportTable:
        return ImportTable(command=PYTHON, args=("-c", text), folder=folder, **more)

    def flooding(what: str) -> ImportTable:
        return ImportTable(command=PYTHON, args=("-m", FLOODING, what), folder=ROOT)

    needy = "import os, sys\nif 'TOKEN' not in os.environ: sys.exit('TOKEN is not set')"
    return {
        "dead-port": ImportTable(url=f"http://127.0.0.1:{dead_port}/mcp"),
        "hangs": python("import sys; sys.stdin.read()", start_s=2),
        "junk": flooding("junk"),
        "flood": flooding("stderr"),
        "missing": ImportTable(command=str(folder / "no-such-program")),
        "exits": python("raise SystemExit(3)"),
        "odd-schema": python(_HANDSHAKE),
        "slow": python(f"import time\ntime.sleep({SLOW_S})\n{_HANDSHAKE}"),
        "needs-variable": python(needy),
        "http-500": ImportTable(url=failing),
    }


STARTING = "it is starting, which may take"
REASONS = {
    "dead-port": ("unavailable", "nothing listens there"),
    "hangs": ("unavailable", "did not start within 2 s (imports.hangs.start_s)"),
    "junk": ("available", "it floods standard output"),
    "flood": ("available", "it floods standard error"),
    "missing": ("unavailable", "No such file"),
    "exits": ("unavailable", "code 3"),
    "slow": ("unknown", f"{STARTING} 60 s (imports.slow.start_s)"),
    "needs-variable": ("unavailable", "TOKEN is not set"),
    "http-500": ("unavailable", "status 500"),
}
"""Status and reason that each broken server has in the end; the tools of ``odd-schema`` are listed."""


def echo_app() -> Any:
    """A server with one tool."""
    context = ServerRequestContext[Any, Any]

    async def list_tools(_: context, params: Any) -> types.ListToolsResult:
        schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        return types.ListToolsResult(tools=[types.Tool(name="echo", input_schema=schema)])

    async def call_tool(_: context, params: types.CallToolRequestParams) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(text=str((params.arguments or {})["text"]))])

    return Server("echo", on_list_tools=list_tools, on_call_tool=call_tool).streamable_http_app()


@asynccontextmanager
async def importing(folder: Path, *, with_broken: bool) -> AsyncIterator[Hub]:
    """A hub with forty servers that work, and with ten that do not."""

    async def fail(request: Any) -> PlainTextResponse:
        return PlainTextResponse("out of order", 500)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        dead_port = taken.getsockname()[1]
        async with open_system(State(folder / f"home-{with_broken}")) as system:
            enter = system.stack.enter_async_context
            failing = await enter(serve_app(Starlette(routes=[Route("/mcp", fail, methods=["POST"])])))
            urls = [await enter(serve_app(echo_app())) for _ in range(4)]
            tables = broken(folder, dead_port, f"{failing}/mcp") if with_broken else {}
            tables |= {f"good-{n}": ImportTable(url=f"{urls[n % 4]}/mcp") for n in range(GOOD)}
            system.settings = Settings(imports=ImportsTable.model_validate(tables), hub={"listing": "all"})
            yield await system.start_hub()


async def list_rows(client: Any) -> dict[str, tuple[str, str]]:
    """Status and reason of every agent, as ``list_agents`` says them."""
    found = await client.call_tool("list_agents", {"detailed": True}, meta={"retinue/whole": True})
    rows = orjson.loads(found.content[0].text)["agents"]
    return {row["name"]: (row["status"], row.get("reason") or "") for row in rows}


def tells(row: tuple[str, str], wanted: tuple[str, str]) -> bool:
    """Whether a row has this status, and a reason with this text; "" = none."""
    return row[0] == wanted[0] and (wanted[1] in row[1] if wanted[1] else not row[1])


def early(name: str) -> list[tuple[str, str]]:
    """What may be told of a broken server before it is known to be one."""
    starting = ("unknown", f"{STARTING} {2 if name == 'hangs' else 60} s (imports.{name}.start_s)")
    # a flooding server answers, and has not flooded for a second
    return [starting, ("available", "")] if name in FLOODS else [starting]


async def wait_for_rows(client: Any, hub: Hub, wanted: Mapping[str, tuple[str, str]]) -> None:
    """Wait until ``list_agents`` says of each of these agents its status and reason."""
    changed = asyncio.Event()
    unsubscribe = hub.mesh.directory.subscribe(lambda _: changed.set())
    missing: dict[str, Any] = {}
    try:
        async with asyncio.timeout(START_S):
            while True:
                changed.clear()
                rows = await list_rows(client)
                missing = {
                    name: rows.get(name)
                    for name, wanted_row in wanted.items()
                    if name not in rows or not tells(rows[name], wanted_row)
                }
                if not missing:
                    return
                await changed.wait()
    except TimeoutError:
        raise AssertionError(f"not as wanted: {missing}") from None
    finally:
        unsubscribe()


async def spend(client: Any) -> float:
    """The processor time of a round of calls to the forty, one after the other and at once, in seconds.

    The cheapest of several rounds counts, because a loaded machine makes single ones dearer.
    """
    rounds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        names = [f"good-{n}__echo" for n in range(GOOD)]
        results = await asyncio.gather(*(client.call_tool(name, {"text": name}) for name in names))
        results += [await client.call_tool(name, {"text": name}) for name in names]
        assert [result.content[0].text for result in results] == names * 2
        rounds.append(time.process_time() - began)
    return min(rounds)


@pytest.mark.timeout(600)
async def test_ten_broken_servers_of_fifty_are_told_at_once_and_slow_down_none(tmp_path: Path) -> None:
    good = {f"good-{n}": ("available", "") for n in range(GOOD)}
    async with (
        importing(tmp_path, with_broken=False) as hub,
        connect(f"{hub.url}/mcp") as client,
    ):
        await wait_for_rows(client, hub, good)
        alone_s = await spend(client)
    async with importing(tmp_path, with_broken=True) as hub, connect(f"{hub.url}/mcp") as client:
        # all run in this process: its time is what the lists take on a machine of their own
        began = time.process_time()
        listed = await client.list_tools()
        rows = await list_rows(client)
        assert time.process_time() - began < 3
        assert "list_agents" in {tool.name for tool in listed.tools}
        assert rows.keys() >= {*good, *REASONS}
        for name, wanted in REASONS.items():
            assert any(tells(rows[name], one) for one in (*early(name), wanted)), (name, rows[name])
        await wait_for_rows(client, hub, good | REASONS)
        began = time.process_time()
        listed = await client.list_tools()
        assert time.process_time() - began < 3
        assert sum(tool.name.endswith("__echo") for tool in listed.tools) == GOOD + len(FLOODS)
        assert "odd-schema__fine" in {tool.name for tool in listed.tools}
        beside_s = await spend(client)
        # a server goes on flooding while it is called
        for name in FLOODS:
            result = await client.call_tool(f"{name}__echo", {"text": name})
            assert result.content[0].text == name  # type: ignore[union-attr]
        await wait_for_rows(client, hub, REASONS)
    assert beside_s < MOST * alone_s, f"{beside_s:.2f} s of a processor, {alone_s:.2f} s without them"


async def test_a_server_that_hangs_once_it_is_called_is_told_with_the_reason(tmp_path: Path) -> None:
    hung = ImportTable(command=PYTHON, args=("-c", _HANDSHAKE), folder=tmp_path)
    async with open_system(State(tmp_path / "home")) as system:
        system.settings = Settings(
            imports=ImportsTable.model_validate({"hung": hung}), timeouts={"door_s": CALL_S}
        )
        hub = await system.start_hub()
        async with connect(f"{hub.url}/mcp", authorization=system.token) as client:
            await wait_for_rows(client, hub, {"hung": ("available", "")})
            calls = [client.call_tool("call_skill", {"skill": "fine"}) for _ in range(CALLS)]
            for result in await asyncio.gather(*calls):
                assert result.is_error
                (told,) = texts(result)
                assert "fine did not answer within 1.2 s (door mcp)" in told
                assert "timeouts.door_s" in told
            reason = "most of its last calls failed: the last had no answer in time"
            await wait_for_rows(client, hub, {"hung": ("available", reason)})
