"""Ten thousand calls and hundreds of clients leave nothing behind in an agent's process."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from tests.mcp.clients import MODES, connect, texts
from tests.processes.running import program, wait_until

CALLS = 10_000
CLIENTS = 8
WARM_CALLS = 2_000
MAX_GROWTH_BYTES = 5 * 1024 * 1024

AGENT = """
from retinue import Agent, Context

agent = Agent("echo-agent", logging=True)


@agent.skill(expose=True)
async def echo(text: str, ctx: Context) -> str:
    await ctx.progress(0.5)
    return text
"""


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def count_sockets(pid: int) -> int:
    found = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            found += str(descriptor.readlink()).startswith("socket:")
    return found


async def call_often(url: str, mode: str, calls: int) -> None:
    """``calls`` over several clients at once, each of which comes and goes a few times."""
    left = calls

    async def one() -> None:
        nonlocal left
        while left > 0:
            async with connect(url, mode) as client:
                for _ in range(min(250, left)):
                    left -= 1
                    assert texts(await client.call_tool("echo", {"text": "hello"})) == ["hello"]

    await asyncio.gather(*(one() for _ in range(CLIENTS)))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", MODES)
def test_ten_thousand_calls_leave_nothing_behind(tmp_path: Path, mode: str) -> None:
    file = tmp_path / "echo_agent.py"
    file.write_text(AGENT)
    with program("serve", str(file), "--no-publish", cwd=tmp_path) as served:
        url = served.url_in("echo-agent") + "/mcp"
        pid = served.process.pid
        at_rest = count_sockets(pid)
        asyncio.run(call_often(url, mode, WARM_CALLS))
        wait_until(lambda: count_sockets(pid) <= at_rest, "the sockets of the first clients are closed")
        before = resident_bytes(pid)
        asyncio.run(call_often(url, mode, CALLS))
        wait_until(lambda: count_sockets(pid) <= at_rest, "every socket is closed")
        growth = resident_bytes(pid) - before
        print(f"{mode}: {CALLS} calls, {growth / 1024:.0f} kB of growth")
        assert growth < MAX_GROWTH_BYTES
