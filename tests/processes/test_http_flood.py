"""Servers at a url that send without end, behind a hub: read slowly, marked until the flood ends."""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from retinue.core.record import Listing
from retinue.mcp.upstream.flood import FloodMeter
from retinue.mcp.upstream.http_transport import HttpTransport
from retinue.mcp.upstream.imports.server import ImportSpec
from retinue.runtime.imports.connections import Imports
from retinue.settings import Settings
from retinue.settings_tables import ImportsTable, ImportTable
from retinue.storage.state import State
from retinue.web.http_client import HttpClient
from tests.mcp.clients import connect, texts
from tests.mcp.upstream.flooding_http_server import PIECES
from tests.mcp.upstream.foreign_server import make_server
from tests.mcp.upstream.test_imports import running
from tests.serving import serve_app
from tests.system import Hub, System

pytestmark = pytest.mark.timeout(600)
CHANGES = "it floods the stream of its changes: over 1 MB a second"
FLOODS = [one for one in PIECES if one not in ("start", "answer", "odd ids")]
"""The floods of a stream of changes."""

REASONS = dict.fromkeys(("questions", "questions without end"), "it sends over 100 requests a second")
ANSWER = "it floods the answer to a request: over 1 MB a second"
FLOOD_S = 2.0
"""How long a flood is watched."""

MOST_MEMORY = 100_000_000
QUIET_S = 2.0
"""Longer than the pause of a flood."""

WAIT_S = 60.0


@asynccontextmanager
async def flooding(what: str, stop: Path) -> AsyncIterator[str]:
    """The url of a flooding server, in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.mcp.upstream.flooding_http_server", what, str(stop)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.wait()


async def until(hub: Hub, name: str, health: str) -> Listing:
    """The listing of an agent once it has this health."""
    changed = asyncio.Event()
    unsubscribe = hub.mesh.directory.subscribe(lambda change: changed.set())
    try:
        async with asyncio.timeout(WAIT_S):
            while (found := hub.mesh.directory.find(name)) is None or found.health != health:
                await changed.wait()
                changed.clear()
            return found
    finally:
        unsubscribe()


@pytest.fixture
def stop(tmp_path: Path) -> Path:
    return tmp_path / "stop"


def _make_imports(settings: Settings, state: State) -> Imports:
    return Imports(settings, state, new_meter=lambda: FloodMeter(quiet_s=QUIET_S))


async def start(system: System, url: str, **more: object) -> Hub:
    """A hub with the flooding server and another one."""
    good = await system.stack.enter_async_context(serve_app(make_server().streamable_http_app()))
    tables = {
        "loud": ImportTable.model_validate({"url": url, **more}),
        "good": ImportTable(url=f"{good}/mcp"),
    }
    system.settings = Settings(imports=ImportsTable.model_validate(tables))
    hub = await system.start_hub(make_imports=_make_imports)
    await hub.wait_until_healthy("good")
    return hub


async def call_good(hub: Hub, token: str) -> None:
    """Call the other server while the flood is watched; each call is answered within the time limit."""
    began = time.monotonic()
    async with connect(f"{hub.url}/mcp", authorization=token) as client:
        while time.monotonic() - began < FLOOD_S:
            async with asyncio.timeout(WAIT_S):
                assert texts(await client.call_tool("good__shout", {"text": "hi"})) == ["HI"]
                listed = {tool.name for tool in (await client.list_tools()).tools}
            assert "good__shout" in listed


@pytest.mark.parametrize("what", FLOODS)
async def test_a_flood_of_the_stream_of_changes_is_read_slowly_and_marked_until_it_ends(
    system: System, stop: Path, what: str
) -> None:
    async with flooding(what, stop) as url:
        hub = await start(system, url)
        found = await until(hub, "loud", "degraded")
        reason = REASONS.get(what, CHANGES)
        assert found.last_error == reason
        before = peak_memory()
        await call_good(hub, system.token)
        async with connect(f"{hub.url}/mcp", authorization=system.token) as client:
            rows = await client.call_tool("list_agents", {"detailed": True})
            assert reason in texts(rows)[0]
            result = await client.call_tool("loud__echo", {"text": "still"})
            assert texts(result) == ["still"]
        assert peak_memory() - before < MOST_MEMORY
        end_flood(stop)
        assert (await until(hub, "loud", "healthy")).last_error is None


async def test_a_server_that_never_answers_the_end_of_a_session_is_left_after_some_seconds(
    stop: Path,
) -> None:
    """By an import that is removed, and by a hub that stops."""
    async with flooding("end of a session", stop) as url, HttpClient() as http, asyncio.timeout(60):
        spec = ImportSpec("loud", lambda: HttpTransport("loud", http, url, {}), url)
        async with running(spec) as imports:
            await imports.until("loud", lambda one: one.health == "healthy")


def end_flood(stop: Path) -> None:
    stop.touch()


def peak_memory() -> int:
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def test_a_flood_in_the_answer_to_a_call_is_read_slowly_until_the_call_ends(
    system: System, stop: Path
) -> None:
    async with flooding("answer", stop) as url:
        hub = await start(system, url)
        await hub.wait_until_healthy("loud")
        async with connect(f"{hub.url}/mcp", authorization=system.token) as client:
            calling = asyncio.create_task(client.call_tool("loud__chat", {}))
            found = await until(hub, "loud", "degraded")
            assert found.last_error == ANSWER
            before = peak_memory()
            await call_good(hub, system.token)
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
        assert peak_memory() - before < MOST_MEMORY
        assert (await until(hub, "loud", "healthy")).last_error is None


async def test_a_server_whose_first_answer_never_ends_says_that_it_floods(system: System, stop: Path) -> None:
    async with flooding("start", stop) as url:
        hub = await start(system, url, start_s=3)
        found = await until(hub, "loud", "unreachable")
        assert found.last_error == f"it did not start within 3 s (imports.loud.start_s); {ANSWER}"
        await call_good(hub, system.token)
        end_flood(stop)
        await hub.wait_until_healthy("loud")


async def test_a_request_with_an_id_that_is_none_costs_the_server_no_session(
    system: System, stop: Path
) -> None:
    """JSON-RPC knows strings and numbers as ids."""
    async with flooding("odd ids", stop) as url:
        hub = await start(system, url)
        await until(hub, "loud", "degraded")
        async with connect(f"{hub.url}/mcp", authorization=system.token) as client:
            assert texts(await client.call_tool("loud__echo", {"text": "still"})) == ["still"]
        end_flood(stop)
        await until(hub, "loud", "healthy")
