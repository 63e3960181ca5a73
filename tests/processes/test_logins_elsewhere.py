"""The tokens of a login at an imported server, and servers of strangers that try to be sent them."""

from __future__ import annotations

import asyncio
import subprocess
import webbrowser
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from retinue.storage.state import State
from tests.processes.commands import run_command
from tests.processes.inside import InsideProgram, inside
from tests.processes.recorder import Recorder, recorder
from tests.processes.running import Program
from tests.processes.test_import_process import visit
from tests.runtime.authorization_server import AuthorizationServer, serve_with_login

pytestmark = pytest.mark.timeout(600)

Command = Callable[..., subprocess.CompletedProcess[str]]


@dataclass(slots=True)
class LoggedIn:
    """A hub whose import ``docs`` has logged in at ``server``, and a stranger."""

    server: AuthorizationServer
    stranger: Recorder
    folder: Path
    command: Command = run_command

    async def run(self, *arguments: str, code: int = 0) -> str:
        """What a command prints, or the error where it is to end with another code than 0."""
        home = {"HOME": str(self.folder)}
        # in a thread, because the server answers here
        done = await asyncio.to_thread(self.command, *arguments, cwd=self.folder, environment=home)
        assert done.returncode == code, done.stderr
        return done.stderr if code else done.stdout

    async def shout(self, text: str) -> str:
        result: str = orjson.loads(
            await self.run("call", "shout", "--agent", "docs", f'{{"text": "{text}"}}')
        )["result"]
        return result

    def check_stranger_has_no_token(self) -> None:
        for kind in (b"secret-", b"uthorization: Bearer", b"refresh_token="):
            assert kind not in self.stranger.received, kind


@pytest.fixture
def stranger() -> Iterator[Recorder]:
    with recorder() as server:
        yield server


@pytest.fixture
async def docs(
    tmp_path: Path, port: int, stranger: Recorder, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LoggedIn]:
    monkeypatch.setenv("BROWSER", "one is there")
    monkeypatch.setattr(webbrowser, "open", visit)
    with inside("hub", "--bare", "--port", str(port), cwd=tmp_path) as hub:
        async with log_in_at_docs(tmp_path, hub, stranger) as logged_in:
            yield logged_in


@asynccontextmanager
async def log_in_at_docs(
    folder: Path, hub: Program | InsideProgram, stranger: Recorder, command: Command = run_command
) -> AsyncIterator[LoggedIn]:
    """Import the server ``docs`` into ``hub`` and log in there; the hub ends with the block."""
    async with serve_with_login() as server:
        logged_in = LoggedIn(server, stranger, folder, command)
        await asyncio.to_thread(hub.wait_for, "0 agents")
        await logged_in.run("import", "mcp-server", "docs", "--url", f"{server.resource_url}/mcp", code=4)
        await logged_in.run("imports", "login", "docs")
        assert await logged_in.shout("in") == "IN"
        yield logged_in
        assert "secret-" not in hub.output
        # in a thread, because the hub ends its session at the server, which runs here
        await asyncio.to_thread(hub.close)


async def test_a_redirect_of_the_server_takes_no_token_along(docs: LoggedIn) -> None:
    docs.server.moved_to = docs.stranger.url
    refused = docs.server.requests["refused"]
    failed = await docs.run("call", "shout", "--agent", "docs", '{"text": "x"}', code=7)
    assert "status 307" in failed
    assert docs.stranger.connections == 0
    docs.server.moved_to = None
    assert await docs.shout("again") == "AGAIN"
    assert docs.server.requests["refused"] == refused


async def test_a_redirect_of_the_token_endpoint_takes_no_refresh_token_along(docs: LoggedIn) -> None:
    known = set(docs.server.access)
    docs.server.access.clear()
    docs.server.token_moved_to = docs.stranger.url
    failed = await docs.run("call", "shout", "--agent", "docs", '{"text": "x"}', code=7)
    assert "it asks for a login" in failed
    assert docs.stranger.connections == 0
    docs.server.token_moved_to = None
    assert await docs.shout("renewed") == "RENEWED"
    assert not known & docs.server.access


async def test_a_changed_url_of_the_import_gets_no_token(docs: LoggedIn) -> None:
    docs.stranger.status, docs.stranger.headers = 401, {"www-authenticate": "Bearer"}
    own = f"{docs.server.resource_url}/mcp"
    for url in (f"{docs.stranger.url}/mcp", own.replace("127.0.0.1", "localhost") + "/else"):
        output = await docs.run("import", "mcp-server", "docs", "--replace", "--url", url, code=4)
        assert "it asks for a login" in output, output
    assert docs.stranger.requests, "it was asked"
    docs.check_stranger_has_no_token()
    # another import at the server of the stranger, which names that of the login
    described = f"{docs.server.resource_url}/.well-known/oauth-protected-resource/mcp"
    docs.stranger.headers = {"www-authenticate": f'Bearer resource_metadata="{described}"'}
    output = await docs.run("import", "mcp-server", "other", "--url", f"{docs.stranger.url}/mcp", code=4)
    assert "it asks for a login" in output
    docs.check_stranger_has_no_token()
    await docs.run("import", "mcp-server", "docs", "--replace", "--url", own)
    assert await docs.shout("back") == "BACK"


async def test_an_authorization_server_that_is_named_later_gets_no_refresh_token(
    docs: LoggedIn, retinue_home: Path
) -> None:
    file = State(retinue_home).keys / "imports" / "docs.json"
    docs.server.named = docs.stranger.url
    docs.server.access.clear()
    assert await docs.shout("renewed") == "RENEWED", "at the one that gave the token"
    assert docs.stranger.connections == 0
    before = file.read_bytes()
    failed = await docs.run("imports", "login", "docs", code=4)
    assert "nothing was stored" in failed
    assert docs.stranger.url in failed, "not what the server of the import said to the registration"
    assert docs.stranger.requests, "a new login asks the named one"
    docs.check_stranger_has_no_token()
    assert file.read_bytes() == before
    assert await docs.shout("kept") == "KEPT"
