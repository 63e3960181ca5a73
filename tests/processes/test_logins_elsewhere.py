"""The tokens of a login at an imported server, and servers of strangers that try to be sent them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest

from retinue.storage.state import State
from tests.processes.recorder import Recorder, recorder
from tests.processes.running import Program, program
from tests.runtime.authorization_server import AuthorizationServer, serve_with_login

pytestmark = pytest.mark.timeout(180)


@dataclass(slots=True)
class LoggedIn:
    """A hub whose import ``docs`` has logged in at ``server``, and a stranger."""

    server: AuthorizationServer
    stranger: Recorder
    hub: Program
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    async def run(self, *arguments: str, code: int = 0) -> str:
        """What a command prints, or the error where it is to end with another code than 0."""
        running = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "retinue",
            *arguments,
            env={**os.environ, "HOME": str(self.folder), **self.environment},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        output, errors = await running.communicate()
        assert running.returncode == code, errors.decode()
        return (errors if code else output).decode()

    async def shout(self, text: str) -> str:
        found: str = orjson.loads(
            await self.run("call", "shout", "--agent", "docs", f'{{"text": "{text}"}}')
        )["result"]
        return found

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
    monkeypatch.setenv("BROWSER", make_browser(tmp_path))
    async with log_in_at_docs(tmp_path, port, stranger) as found:
        yield found


def make_browser(folder: Path) -> str:
    """A command that opens the page of a login and lets the person in."""
    browser = folder / "browser.py"
    browser.write_text("import sys, urllib.request\nurllib.request.urlopen(sys.argv[1])\n")
    return f"{sys.executable} {browser} %s"


@asynccontextmanager
async def log_in_at_docs(
    folder: Path, port: int, stranger: Recorder, environment: Mapping[str, str] | None = None
) -> AsyncIterator[LoggedIn]:
    known = environment or {}
    async with serve_with_login() as server:
        with program("hub", "--bare", "--port", str(port), cwd=folder, environment=known) as hub:
            found = LoggedIn(server, stranger, hub, folder, known)
            await asyncio.to_thread(hub.wait_for, "0 agents")
            await found.run("import", "mcp-server", "docs", "--url", f"{server.resource_url}/mcp")
            await found.run("imports", "login", "docs")
            assert await found.shout("in") == "IN"
            yield found
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
        said = await docs.run("import", "mcp-server", "docs", "--url", url)
        assert "it asks for a login" in said, said
    assert docs.stranger.requests, "it was asked"
    docs.check_stranger_has_no_token()
    # another import at the server of the stranger, which names that of the login
    described = f"{docs.server.resource_url}/.well-known/oauth-protected-resource/mcp"
    docs.stranger.headers = {"www-authenticate": f'Bearer resource_metadata="{described}"'}
    said = await docs.run("import", "mcp-server", "other", "--url", f"{docs.stranger.url}/mcp")
    assert "it asks for a login" in said
    docs.check_stranger_has_no_token()
    await docs.run("import", "mcp-server", "docs", "--url", own)
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
    assert docs.stranger.requests, "a new login asks the named one"
    docs.check_stranger_has_no_token()
    assert file.read_bytes() == before
    assert await docs.shout("kept") == "KEPT"
