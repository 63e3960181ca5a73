"""A foreign MCP server behind a hub, in real processes: imported, listed, called by the official client."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tomllib
import urllib.request
import webbrowser
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from mcp import Client
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from retinue.storage.state import State
from tests.mcp import clients
from tests.mcp.upstream.foreign_server import make_server
from tests.processes.commands import run_command
from tests.processes.inside import inside
from tests.processes.running import program
from tests.runtime.authorization_server import serve_with_login
from tests.serving import serve_app

ROOT = Path(__file__).resolve().parents[2]
SERVER = (sys.executable, "-m", "tests.mcp.upstream.foreign_server")
Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs ``retinue`` and returns what it prints, or the error where it ends with another code than 0."""

    def run(*arguments: str, cwd: Path = ROOT, code: int = 0) -> str:
        done = run_command(*arguments, cwd=cwd, environment={"HOME": str(tmp_path)})
        assert done.returncode == code, done.stderr
        return done.stderr if code else done.stdout

    return run


async def test_an_imported_server_is_called_by_every_client_of_the_hub(
    tmp_path: Path, port: int, run: Run
) -> None:
    with inside("hub", "--bare", "--port", str(port), cwd=tmp_path) as hub:
        url = hub.url_in("hub at")
        hub.wait_for("0 agents")
        said = run("import", "mcp-server", "loud", "--", *SERVER, "plain")
        assert said.startswith("loud: 9 skills: shout, count, book, think, say, hang, ends, die …")
        assert orjson.loads(run("call", "shout", '{"text": "hi"}')) == {"result": "HI"}
        async with Client(f"{url}/mcp") as client:
            assert "loud__shout" in {tool.name for tool in (await client.list_tools()).tools}
            result = await client.call_tool("loud__shout", {"text": "over mcp"})
            assert result.structured_content == {"result": "OVER MCP"}
        async with Client(f"{url}/agents/loud/mcp") as client:
            result = await client.call_tool("shout", {"text": "alone"})
            assert result.structured_content == {"result": "ALONE"}
        failed = run("import", "mcp-server", "sad", "--", *SERVER, "broken", code=7)
        assert failed.endswith("sad is kept, but does not run: it ended with code 3: TOKEN is not set\n")
        assert orjson.loads(run("call", "shout", '{"text": "still"}')) == {"result": "STILL"}
    with inside("hub", "--bare", "--port", str(port), cwd=tmp_path) as hub:
        hub.wait_for("2 agents, ")
        assert orjson.loads(run("call", "shout", '{"text": "kept"}')) == {"result": "KEPT"}
        run("imports", "remove", "loud")
        while "loud" in run("agents"):
            continue
    assert "sad" in run("imports")


def test_the_servers_of_a_client_are_shown_and_imported(tmp_path: Path, run: Run) -> None:
    servers = {
        "Loud One": {"command": "npx", "args": ["-y", "loud"], "env": {"A": "1"}},
        "web": {"type": "http", "url": "https://example.com/mcp", "headers": {"Authorization": "Bearer x"}},
        "retinue": {"command": "/usr/bin/retinue", "args": ["mcp"]},
    }
    (tmp_path / ".claude.json").write_bytes(orjson.dumps({"mcpServers": servers}))
    shown = run("import", "claude")
    assert "npx -y loud" in shown
    assert "https://example.com/mcp" in shown
    assert "/usr/bin/retinue" not in shown
    assert "kept: loud-one, web" in run("import", "claude", "--all")
    listed = orjson.loads(run("imports", "--json"))["imports"]
    assert [(row["name"], row["connects_to"]) for row in listed] == [
        ("loud-one", "npx -y loud"),
        ("web", "https://example.com/mcp"),
    ]


def test_the_servers_of_a_project_are_imported_with_its_folder(tmp_path: Path, run: Run) -> None:
    project = tmp_path / "app"
    (project / ".vscode").mkdir(parents=True)
    servers = {
        "here": {"command": "${workspaceFolder}/run", "env": {"KEY": "${env:KEY}"}},
        "asks": {"command": "x", "env": {"KEY": "${input:key}"}},
    }
    (project / ".vscode" / "mcp.json").write_bytes(orjson.dumps({"servers": servers}))
    assert "has no MCP servers" in run("import", "vscode")
    assert "only the client knows ${input:key}" in run("import", "vscode", "--project", str(project))
    said = run("import", "vscode", "--project", str(project), "--all")
    assert "asks is left out: only the client knows ${input:key}" in said
    kept = tomllib.loads((Path(os.environ["RETINUE_HOME"]) / "imports.toml").read_text())
    assert kept == {"here": {"command": f"{project}/run", "env": {"KEY": "${KEY}"}, "folder": str(project)}}


async def test_five_hundred_tools_cost_a_client_less_than_12_kb_and_each_is_found_and_called(
    tmp_path: Path, port: int, run: Run
) -> None:
    with inside("hub", "--bare", "--port", str(port), cwd=tmp_path) as hub:
        url = hub.url_in("hub at")
        hub.wait_for("0 agents")
        assert run("import", "mcp-server", "many", "--", *SERVER, "many").startswith("many: 500 skills")
        token = State(Path(os.environ["RETINUE_HOME"])).local_token()
        async with clients.connect(f"{url}/mcp", "auto", authorization=f"Bearer {token}") as client:
            tools = (await client.list_tools()).tools
            shown = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools]
            assert len(orjson.dumps(shown)) < 12_000
            assert any("500 more tools of 1 agent" in (tool.description or "") for tool in tools)
            wanted = {"query": "repeat number 321", "limit": 3, "detailed": True}
            found = await client.call_tool("find_skills", wanted)
            rows = orjson.loads(clients.texts(found)[0])["skills"]
            row = next(row for row in rows if row["skill"] == "repeat_321")
            assert row["description"].endswith("The end of 321.")
            result = await client.call_tool("many__repeat_321", {"text": "a", "times": 3})
            assert result.structured_content == {"result": "321: aaa"}
        (line,) = [line for line in run("doctor").splitlines() if "tool list" in line]
        sizes = [float(size) for size in re.findall(r"\(([\d.]+) kB\)", line)]
        assert len(sizes) == 2
        assert max(sizes) < 12


def visit(page: str) -> None:
    """Open a page as a browser does, in the process of the command."""
    with urllib.request.urlopen(page):
        pass


async def test_a_server_that_asks_for_a_login_is_called_after_it(
    tmp_path: Path, port: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROWSER", "one is there")
    monkeypatch.setattr(webbrowser, "open", visit)
    async with serve_with_login() as server:
        with inside("hub", "--bare", "--port", str(port), cwd=tmp_path) as hub:
            hub.wait_for("0 agents")
            url = f"{server.resource_url}/mcp"
            kept = await asyncio.to_thread(run, "import", "mcp-server", "docs", "--url", url, code=4)
            assert kept == "docs is kept, but does not run: it asks for a login: retinue imports login docs\n"
            assert "retinue imports login docs" in await asyncio.to_thread(run, "imports")
            said = await asyncio.to_thread(run, "imports", "login", "docs")
            assert said.startswith(f"log in at: {server.url}/authorize?")
            assert "docs: 9 skills: shout" in said
            told = await asyncio.to_thread(run, "call", "shout", '{"text": "in"}')
            assert orjson.loads(told) == {"result": "IN"}
            server.wanted = {"shout": "files:write"}
            failed = await asyncio.to_thread(run, "call", "shout", '{"text": "in"}', code=1)
            assert "server docs asks for a login with more rights: files:write" in failed
            assert "retinue imports login docs --scope files:write" in failed
            await asyncio.to_thread(run, "imports", "login", "docs", "--scope", "files:write")
            told = await asyncio.to_thread(run, "call", "shout", '{"text": "in"}')
            assert orjson.loads(told) == {"result": "IN"}
            server.access.clear()
            told = await asyncio.to_thread(run, "call", "shout", '{"text": "renewed"}')
            assert orjson.loads(told) == {"result": "RENEWED"}
            assert "secret-" not in hub.output + said
            await asyncio.to_thread(run, "imports", "remove", "docs")
            assert not list((State(Path(os.environ["RETINUE_HOME"])).keys / "imports").glob("*.json"))


async def test_the_headers_of_an_import_reach_the_server_with_the_variables_of_the_hub(
    tmp_path: Path, port: int, run: Run
) -> None:
    app = make_server().streamable_http_app()
    seen: list[dict[bytes, bytes]] = []

    async def note_headers(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            seen.append(dict(scope["headers"]))
        await app(scope, receive, send)

    header = "Authorization=Bearer ${LOUD_TOKEN}"
    environment = {"LOUD_TOKEN": "secret-of-the-hub"}
    async with serve_app(note_headers) as server:
        with program("hub", "--bare", "--port", str(port), cwd=tmp_path, environment=environment) as hub:
            hub.wait_for("0 agents")
            url = ("--url", f"{server}/mcp", "--header", header, "--header", "X-Team=blue")
            said = await asyncio.to_thread(run, "import", "mcp-server", "loud", *url)
            assert said.startswith("loud: 9 skills: shout")
            told = await asyncio.to_thread(run, "call", "shout", '{"text": "hi"}')
            assert orjson.loads(told) == {"result": "HI"}
    sent = {(one.get(b"authorization"), one.get(b"x-team")) for one in seen}
    assert sent == {(b"Bearer secret-of-the-hub", b"blue")}
    assert header.partition("=")[2] in (Path(os.environ["RETINUE_HOME"]) / "imports.toml").read_text()
    assert "secret-of-the-hub" not in hub.output + said


async def test_an_http_api_is_called_by_its_document(tmp_path: Path, port: int, run: Run) -> None:
    async def pet(request: Request) -> JSONResponse:
        number, lang = request.path_params["id"], request.query_params["lang"]
        return JSONResponse({"id": number if lang == "text" else int(number), "name": lang})

    document = {
        "openapi": "3.1.0",
        "info": {"title": "Pets", "version": "2.0.0"},
        "servers": [{"url": "/v1"}],
        "paths": {
            "/pets/{id}": {
                "get": {
                    "operationId": "getPet",
                    "parameters": [
                        {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}},
                        {"name": "lang", "in": "query", "schema": {"type": "string"}},
                    ],
                    "responses": {
                        "200": {
                            "description": "the pet",
                            "content": {
                                "application/json": {
                                    "schema": {
                                        "type": "object",
                                        "properties": {"id": {"type": "integer"}},
                                        "required": ["id"],
                                    }
                                }
                            },
                        }
                    },
                }
            }
        },
    }
    routes = [
        Route("/v1/pets/{id}", pet),
        Route("/openapi.json", lambda request: JSONResponse(document)),
    ]
    async with serve_app(Starlette(routes=routes)) as api:
        with inside("hub", "--bare", "--port", str(port), cwd=tmp_path) as hub:
            hub.wait_for("0 agents")
            said = await asyncio.to_thread(run, "import", "openapi", f"{api}/openapi.json", "--name", "pets")
            assert said == "pets: 1 skills: getPet\n"
            told = await asyncio.to_thread(run, "call", "getPet", '{"id": 7, "lang": "en"}')
            assert orjson.loads(told) == {"id": 7, "name": "en"}
            async with Client(f"{hub.url_in('hub at')}/mcp") as client:
                result = await client.call_tool("pets__getPet", {"id": 8, "lang": "de"})
                assert result.structured_content == {"id": 8, "name": "de"}
                result = await client.call_tool("pets__getPet", {"id": 8, "lang": "text"})
                assert result.structured_content == {"id": "8", "name": "text"}
                assert "differs from the API's document" in getattr(result.content[-1], "text", "")


def test_a_variable_that_the_hub_lacks_is_named_and_never_passed_on_as_text(
    tmp_path: Path, port: int, run: Run
) -> None:
    with inside("hub", "--bare", "--port", str(port), cwd=tmp_path) as hub:
        hub.wait_for("0 agents")
        lacking = ("--env", "KEY=a ${NO_SUCH_KEY}")
        said = run("import", "mcp-server", "loud", *lacking, "--", *SERVER, "plain", code=7)
        assert said == (
            "loud is kept, but does not run: the variable NO_SUCH_KEY for its env KEY is not set in the "
            "hub's environment: set it and start the hub again\n"
        )
        url = f"http://127.0.0.1:{port}/x"
        said = run("import", "mcp-server", "web", "--url", url, "--header", "A=${NO_KEY}", code=7)
        assert "the variable NO_KEY for its headers A is not set in the hub's environment" in said
        said = run("import", "a2a", url, "--name", "peer", "--token-env", "NO_TOKEN", code=7)
        assert (
            "the variable NO_TOKEN for its headers Authorization is not set in the hub's environment" in said
        )
        assert "NO_SUCH_KEY" in run("imports")
        # a dollar sign that begins no variable is text
        text = ("--replace", "--env", "KEY=$$5 $x")
        said = run("import", "mcp-server", "loud", *text, "--", *SERVER, "plain")
        assert "loud: 9 skills" in said
