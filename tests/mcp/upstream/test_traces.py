"""The trace of what reaches an imported server: in ``_meta`` of each message, over HTTP in headers too."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.mcp.stdio.server_program import ServerProgram
from retinue.mcp.upstream.http_transport import HttpTransport
from retinue.mcp.upstream.imports import server as imported
from retinue.mcp.upstream.imports.server import ImportSpec
from retinue.web.http_client import HttpClient
from tests.mcp.upstream.foreign_server import make_server
from tests.mcp.upstream.library_server import Library, SessionlessOnly
from tests.mcp.upstream.test_imports import WAIT_S, Imports, is_ready, running
from tests.requirements import requirement
from tests.serving import serve_app
from tests.system import System

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]
KEY = "X-OpenStarry-Trace-ID"
ROOT = Path(__file__).resolve().parents[3]


class Notes:
    """The messages that reached a server, each with the trace in its header; None over standard streams."""

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, Any], str | None]] = []

    def read(self) -> list[tuple[dict[str, Any], str | None]]:
        return self.seen

    def traces(self, *methods: str) -> list[str]:
        """The trace ids of the requests and notifications, of these methods if any are given.

        Fails for a message without one, and for one whose header differs.
        """
        ids = []
        for document, header in self.read():
            if "method" not in document or (methods and document["method"] not in methods):
                continue
            meta = document.get("params", {}).get("_meta", {})
            assert KEY in meta, document
            assert header in (None, meta[KEY]), document
            ids.append(meta[KEY])
        return ids

    def methods_of(self, trace_id: str) -> list[str]:
        """The methods of the messages of one trace, in order."""
        return [
            document["method"]
            for document, _ in self.read()
            if document.get("params", {}).get("_meta", {}).get(KEY) == trace_id
        ]

    async def until(self, method: str) -> None:
        async with asyncio.timeout(WAIT_S):
            while not any(document.get("method") == method for document, _ in self.read()):
                await asyncio.sleep(0.01)


class FileNotes(Notes):
    """The notes of a program."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        file.touch()

    def read(self) -> list[tuple[dict[str, Any], str | None]]:
        whole = self._file.read_bytes().rpartition(b"\n")[0]
        return [(orjson.loads(line), None) for line in whole.splitlines()]


class Noting:
    """An app, with every message that reaches it noted."""

    def __init__(self, app: ASGIApp, notes: Notes) -> None:
        self._app = app
        self._notes = notes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def read() -> Message:
            message = await receive()
            if message["type"] == "http.request" and message.get("body"):
                headers = {key.decode(): value.decode() for key, value in scope["headers"]}
                self._notes.seen.append((orjson.loads(message["body"]), headers.get(KEY.lower(), "")))
            return message

        await self._app(scope, read if scope["type"] == "http" else receive, send)


class World:
    """One imported server, and what reached it."""

    def __init__(
        self, imports: Imports, notes: Notes, url: str = "", serving: AsyncExitStack | None = None
    ) -> None:
        self.imports = imports
        self.notes = notes
        self.url = url
        self.serving = serving or AsyncExitStack()
        """Ends the server at the url."""


@asynccontextmanager
async def over_http(*, sessionless: bool = False) -> AsyncIterator[World]:
    notes = Notes()
    app = make_server().streamable_http_app()
    noting = Noting(SessionlessOnly(app) if sessionless else app, notes)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(HttpClient())
        serving = await stack.enter_async_context(AsyncExitStack())
        url = await serving.enter_async_context(serve_app(noting))
        spec = ImportSpec("foreign", lambda: HttpTransport("foreign", http, f"{url}/mcp", {}), url)
        world = World(await stack.enter_async_context(running(spec)), notes, url, serving)
        await world.imports.until("foreign", is_ready)
        yield world


@asynccontextmanager
async def as_program(folder: Path) -> AsyncIterator[World]:
    notes = FileNotes(folder / "notes")
    server = [sys.executable, "-m", "tests.mcp.upstream.foreign_server", "plain"]
    command = [sys.executable, "-m", "tests.mcp.upstream.noting_server", str(folder / "notes"), "--", *server]
    spec = ImportSpec(
        "foreign", lambda: ServerProgram("foreign", command, {}, own=os.environ, folder=ROOT), "a program"
    )
    async with running(spec) as imports:
        world = World(imports, notes)
        await imports.until("foreign", is_ready)
        yield world


@pytest.fixture(params=["program", "http", "sessionless"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    if request.param == "program":
        async with as_program(tmp_path) as world:
            yield world
    else:
        async with over_http(sessionless=request.param == "sessionless") as world:
            yield world


@requirement("S-13")
async def test_what_the_hub_asks_for_itself_has_a_trace_of_its_own_in_every_message(world: World) -> None:
    opened = world.notes.traces("initialize", "notifications/initialized", "server/discover", "tools/list")
    assert len(opened) >= 3
    assert len(set(opened)) == 1, "one connection is one trace"
    assert (await world.imports.call("shout", {"text": "hi"}, trace_id="a-call")).get() == {"result": "HI"}
    assert world.notes.traces("tools/call") == ["a-call"]
    assert world.notes.methods_of("a-call") == ["tools/call"]
    world.notes.traces()


@requirement("S-13")
@pytest.mark.parametrize("world", ["program", "http"], indirect=True)
async def test_a_list_that_is_read_again_has_a_trace_of_its_own(world: World) -> None:
    before = set(world.notes.traces())
    pins = world.imports.servers.pins
    async with asyncio.timeout(WAIT_S):
        while not pins.list_waiting("foreign"):
            # it tells so each time; the first time the client may not listen yet
            outcome = await world.imports.call("grow", trace_id="grows")
            assert outcome.get() == {"result": "grown"}
            await asyncio.sleep(0.05)
    again = set(world.notes.traces("tools/list")) - before
    assert again
    assert "grows" not in again


@requirement("S-13")
@pytest.mark.parametrize("world", ["program", "http"], indirect=True)
async def test_the_cancellation_of_a_call_carries_its_trace(world: World) -> None:
    hung = asyncio.create_task(world.imports.call("hang", trace_id="gives-up"))
    await world.notes.until("tools/call")
    hung.cancel()
    await asyncio.gather(hung, return_exceptions=True)
    await world.notes.until("notifications/cancelled")
    assert world.notes.methods_of("gives-up") == ["tools/call", "notifications/cancelled"]
    world.notes.traces()


@pytest.fixture
def only_calls_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost session is opened by the next call, however slow the machine is, and not by the hub before."""
    for name in ("FIRST_BACK_OFF_S", "REOPEN_S", "RELIST_S"):
        monkeypatch.setattr(imported, name, 600.0)


@requirement("S-13")
@pytest.mark.usefixtures("only_calls_connect")
async def test_a_session_that_a_call_must_open_carries_the_trace_of_the_call() -> None:
    async with over_http() as world, AsyncExitStack() as stack:
        await world.serving.aclose()
        app = Noting(make_server().streamable_http_app(), world.notes)
        await stack.enter_async_context(serve_app(app, port=int(world.url.rpartition(":")[2])))
        world.notes.seen.clear()
        outcome = await world.imports.call("shout", {"text": "hi"}, trace_id="opens")
        assert outcome.get() == {"result": "HI"}
        opened = world.notes.methods_of("opens")
    # the first call meets a session that is gone
    assert opened[:3] == ["tools/call", "initialize", "notifications/initialized"]
    assert {"tools/list", "server/discover"} <= set(opened)
    assert opened[-1] == "tools/call"


@requirement("S-13")
@pytest.mark.usefixtures("only_calls_connect")
async def test_a_program_that_a_call_must_start_again_gets_the_trace_of_the_call(tmp_path: Path) -> None:
    async with as_program(tmp_path) as world:
        await world.imports.call("die", trace_id="ends-it")
        assert (await world.imports.call("shout", {"text": "hi"}, trace_id="starts")).get() == {
            "result": "HI"
        }
        world.notes.traces()
        opened = world.notes.methods_of("starts")
    # it is known to have ended, or the first message finds that out
    assert [method for method in opened if method != "tools/call"] == [
        "initialize",
        "notifications/initialized",
        "tools/list",
        "resources/list",
        "resources/templates/list",
        "prompts/list",
    ]
    assert opened[-1] == "tools/call"


@requirement("S-13")
@pytest.mark.parametrize("era", ["handshake", "sessionless"])
async def test_every_message_of_a_connection_to_a_url_carries_the_trace_of_its_call(
    system: System, era: str
) -> None:
    notes = Notes()
    app = Library().server.streamable_http_app()
    noting = Noting(SessionlessOnly(app) if era == "sessionless" else app, notes)
    url = await system.stack.enter_async_context(serve_app(noting))
    agent = Agent("reader-agent")

    @agent.skill(expose=True)
    async def tour(ctx: Context) -> int:
        async with ctx.mcp(f"{url}/mcp") as server:
            await server.ask_tool("link")
            return len(await server.list_tools()) + len(await server.list_resources())

    served = await system.start_agent(agent)
    async with HttpClient() as http:
        body = orjson.dumps({"jsonrpc": "2.0", "method": "tour", "params": {}, "id": 1})
        headers = {"content-type": "application/json", KEY: "one-tour"}
        await http.request("POST", f"{served.url}/execute", headers=headers, body=body, timeout_s=WAIT_S)
    traces = notes.traces()
    assert len(traces) >= 5
    assert set(traces) == {"one-tour"}
