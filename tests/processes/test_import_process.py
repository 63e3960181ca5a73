"""A foreign MCP server behind a hub, in real processes: imported, listed, called by the official client."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from mcp import Client

from tests.processes.running import program

ROOT = Path(__file__).resolve().parents[2]
SERVER = (sys.executable, "-m", "tests.mcp.upstream.foreign_server")
Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs ``retinue`` and returns what it prints."""

    def run(*arguments: str, cwd: Path = ROOT) -> str:
        command = [sys.executable, "-m", "retinue", *arguments]
        found = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.returncode == 0, found.stderr
        return found.stdout

    return run


async def test_an_imported_server_is_called_by_every_client_of_the_hub(
    tmp_path: Path, port: int, run: Run
) -> None:
    with program("hub", "--bare", "--port", str(port), cwd=tmp_path) as hub:
        url = hub.url_in("hub at")
        hub.wait_for("0 agents")
        said = run("import", "mcp-server", "loud", "--", *SERVER, "plain")
        assert said.startswith("loud: 6 tools: shout, count, book, hang, die, grow")
        assert orjson.loads(run("call", "shout", '{"text": "hi"}')) == {"result": "HI"}
        async with Client(f"{url}/mcp") as client:
            assert "loud__shout" in {tool.name for tool in (await client.list_tools()).tools}
            result = await client.call_tool("loud__shout", {"text": "over mcp"})
            assert result.structured_content == {"result": "OVER MCP"}
        async with Client(f"{url}/agents/loud/mcp") as client:
            result = await client.call_tool("shout", {"text": "alone"})
            assert result.structured_content == {"result": "ALONE"}
        failed = run("import", "mcp-server", "sad", "--", *SERVER, "broken")
        assert failed == "sad is kept, but does not run: it ended with code 3: TOKEN is not set\n"
        assert orjson.loads(run("call", "shout", '{"text": "still"}')) == {"result": "STILL"}
    with program("hub", "--bare", "--port", str(port), cwd=tmp_path) as hub:
        hub.wait_for("2 agents, 6 skills")
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
