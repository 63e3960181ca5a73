"""Changes of files are looked for at times, however many calls there are: no call looks for itself."""

from __future__ import annotations

import os
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from retinue.authoring.agent import Agent
from retinue.mesh.directory.source_set import LOOK_S
from retinue.settings import Settings
from retinue.settings_tables import ImportsTable, ImportTable
from tests.mcp.clients import connect, read_result, sessionless
from tests.mcp.upstream.library_server import Library, serve_library
from tests.system import Hub, System, Wire

CALLS = 200
WARM_UP = 5

Call = Callable[[], Awaitable[None]]


class Looks:
    """Every look at a file below ``folder``: by ``os.stat`` and ``os.lstat``, which pathlib uses, too."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: Counter[str] = Counter()
        self.by: dict[str, str] = {}
        self._folder = str(folder)
        for name in ("stat", "lstat"):
            monkeypatch.setattr(os, name, self._counting(getattr(os, name)))

    def _counting(self, look: Callable[..., Any]) -> Callable[..., Any]:
        def counting(path: Any, **options: Any) -> Any:
            if not isinstance(path, int) and (text := os.fsdecode(path)).startswith(self._folder):
                self.of[text] += 1
                self.by[text] = "".join(traceback.format_stack(limit=4))
            return look(path, **options)

        return counting


def execute_call(token: str, hub: Hub, wire: Wire) -> Call:
    async def call() -> None:
        reply = await wire.call(hub.url, "greet", authorization=token)
        assert reply.result == "hello"

    return call


def tool_call(tool: str, text: str) -> Callable[[str, Hub, Wire], Call]:
    def make(token: str, hub: Hub, wire: Wire) -> Call:
        async def call() -> None:
            message, headers = sessionless("tools/call", {"name": tool, "arguments": {}})
            reply = await wire.post(f"{hub.url}/mcp", message, authorization=token, **headers)
            assert read_result(reply.body)["result"]["content"][0]["text"] == text

        return call

    return make


DOORS = {
    "execute": execute_call,
    "MCP of the hub": tool_call("hello-agent__greet", "hello"),
    "MCP of the hub, an imported server": tool_call("lib__link", "see"),
}


async def start(system: System) -> Hub:
    """A hub with an agent, and with an imported server at a url."""
    agent = Agent("hello-agent")

    @agent.skill(expose=True)
    async def greet() -> str:
        return "hello"

    url = await system.stack.enter_async_context(serve_library(Library()))
    system.settings = Settings(imports=ImportsTable.model_validate({"lib": ImportTable(url=url)}))
    hub = await system.start_hub()
    await system.start_agent(agent)
    await hub.mesh.directory.refresh()
    await hub.wait_until_healthy("lib")
    return hub


def check(looks: Looks, took_s: float) -> None:
    """Each file may have been looked at once for each `LOOK_S`, and never once for each call."""
    allowed = took_s / LOOK_S + 2
    found = {path: count for path, count in looks.of.items() if count > allowed}
    assert not found, f"in {took_s:.2f} s: {found}, such as\n{looks.by[next(iter(found))]}"


@pytest.mark.parametrize("door", DOORS)
async def test_a_call_looks_at_no_file_of_its_own(
    system: System, wire: Wire, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    hub = await start(system)
    call = DOORS[door](system.token, hub, wire)
    for _ in range(WARM_UP):
        await call()
    with monkeypatch.context() as patch:
        looks = Looks(system.state.root, patch)
        began = time.monotonic()
        for _ in range(CALLS):
            await call()
        took_s = time.monotonic() - began
    assert looks.of, "the registry is looked at"
    check(looks, took_s)


async def test_a_call_in_a_session_looks_at_no_file_of_its_own(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = await start(system)
    async with connect(f"{hub.url}/mcp", "legacy", authorization=system.token) as client:
        for tool in ("hello-agent__greet", "lib__link"):
            await client.call_tool(tool, {})
            with monkeypatch.context() as patch:
                looks = Looks(system.state.root, patch)
                began = time.monotonic()
                for _ in range(CALLS):
                    await client.call_tool(tool, {})
                took_s = time.monotonic() - began
            check(looks, took_s)
