"""What a program pays for the client: a call beside raw aiohttp and the MCP SDK's client, and its start.

A hub and an agent run as processes. The clients are processes, too, which call the same skill through the
hub in turn. Figures are processor time of the client's process, which can be trusted on a busy machine; the
best of the rounds counts.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from benchmarks.figures import Figure
from benchmarks.mcp_hub_processes import retinue, wait_until_served

ROUNDS = 5
CALLS = 2000
WARM_CALLS = 200

RAW_SHARE = 1.5
IMPORT_MS = 120.0
IMPORT_MB = 45.0
FIRST_CALL_MS = 300.0

AGENT = '''
from retinue import Agent

agent = Agent("echo-agent", version="1.0.0")


@agent.skill(expose=True)
async def echo(text: str, count: int) -> dict[str, str | int]:
    """Gives back what it was given."""
    return {"text": text, "count": count}
'''
ARGUMENTS = {"text": "hello", "count": 3}

Call = Callable[[], Awaitable[Any]]


def measure() -> list[Figure]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="client-")))
        (folder / "echo_agent.py").write_text(AGENT, encoding="utf-8")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RETINUE_")}
        home = {**kept, "RETINUE_HOME": str(folder / "state")}
        hub, _ = stack.enter_context(retinue(["hub", "--bare"], home, folder, "/health"))
        stack.enter_context(retinue(["serve", "echo_agent.py"], home, folder, "/health"))
        wait_until_served(f"{hub}/agents/echo-agent/agent-card")
        rounds = [{name: _ask(name, hub, home) for name in _CHILDREN} for _ in range(ROUNDS)]
    calls_us = {name: min(round_[name]["cpu_us"] for round_ in rounds) for name in CLIENTS}
    starts = [round_["start"] for round_ in rounds]
    import_ms, mb, first_ms = (min(start[key] for start in starts) for key in ("import_ms", "mb", "first_ms"))
    return [
        *(Figure(f"CPU per call, {name}", spent_us, "µs") for name, spent_us in calls_us.items()),
        Figure(
            "CPU of the client / of aiohttp", calls_us["client"] / calls_us["aiohttp"], "×", target=RAW_SHARE
        ),
        Figure("CPU of the client / of the MCP SDK", calls_us["client"] / calls_us["MCP SDK"], "×", target=1),
        Figure("CPU of `import retinue; retinue.connect`", import_ms, "ms", target=IMPORT_MS),
        Figure("memory of it", mb, "MB", target=IMPORT_MB),
        Figure("CPU until the first call is answered", first_ms, "ms", target=FIRST_CALL_MS),
        Figure(
            "CPU of `import aiohttp`", min(round_["import aiohttp"]["import_ms"] for round_ in rounds), "ms"
        ),
    ]


def _ask(what: str, hub: str, environment: Mapping[str, str]) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.client", what, hub]
    if what in _CODES:
        command = [sys.executable, "-c", _CODES[what]]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    figures: dict[str, float] = orjson.loads(done.stdout.splitlines()[-1])
    return figures


# What the child processes do.

_REPORT = """
def report(**figures):
    import json
    with open("/proc/self/status") as status:
        high = next(line.split()[1] for line in status if line.startswith("VmHWM"))
    print(json.dumps({**figures, "mb": int(high) / 1024}))
"""

_CODES = {
    "start": f"""
import time
import retinue
retinue.connect
import_ms = time.process_time() * 1000
import asyncio
async def main():
    async with retinue.connect() as mesh:
        await mesh.call("echo", {ARGUMENTS!r})
asyncio.run(main())
first_ms = time.process_time() * 1000
{_REPORT}
report(import_ms=import_ms, first_ms=first_ms)
""",
    "import aiohttp": f"""
import time
import aiohttp
import_ms = time.process_time() * 1000
{_REPORT}
report(import_ms=import_ms)
""",
}


@asynccontextmanager
async def _open_client(hub: str) -> AsyncIterator[Call]:
    import retinue as package

    async with package.connect() as mesh:
        yield lambda: mesh.call("echo", ARGUMENTS)


@asynccontextmanager
async def _open_aiohttp(hub: str) -> AsyncIterator[Call]:
    """The same requests by hand: a body, a reply, and a look at whether it is a result."""
    import aiohttp

    headers = {"content-type": "application/json"}

    async with aiohttp.ClientSession(headers=headers) as session:

        async def call() -> Any:
            request = {"jsonrpc": "2.0", "id": 1, "method": "echo", "params": ARGUMENTS}
            async with session.post(f"{hub}/execute", data=orjson.dumps(request)) as reply:
                return orjson.loads(await reply.read())["result"]

        yield call


@asynccontextmanager
async def _open_sdk(hub: str) -> AsyncIterator[Call]:
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    async with (
        streamable_http_client(f"{hub}/mcp") as streams,
        ClientSession(streams[0], streams[1]) as session,
    ):
        await session.initialize()

        async def call() -> Any:
            result = await session.call_tool("echo-agent__echo", ARGUMENTS)
            return result.structured_content

        yield call


CLIENTS = {"aiohttp": _open_aiohttp, "client": _open_client, "MCP SDK": _open_sdk}
_CHILDREN = (*CLIENTS, *_CODES)


async def _measure_calls(name: str, hub: str) -> float:
    async with CLIENTS[name](hub) as call:
        for _ in range(WARM_CALLS):
            assert await call() == ARGUMENTS
        began = time.process_time()
        for _ in range(CALLS):
            await call()
        return (time.process_time() - began) * 1e6 / CALLS


if __name__ == "__main__":
    print(orjson.dumps({"cpu_us": asyncio.run(_measure_calls(*sys.argv[1:]))}).decode())
