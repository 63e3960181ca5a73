"""An agent of the SDK of A2A behind a hub, in real processes: imported, found, called, removed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest
from mcp import Client

from tests.processes.running import program

ROOT = Path(__file__).resolve().parents[2]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def foreign_agent(version: str) -> Iterator[str]:
    port = _free_port()
    command = [sys.executable, "-m", "tests.a2a.foreign_agent", str(port), version]
    agent = subprocess.Popen(command, cwd=ROOT)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        agent.terminate()
        agent.wait(10)


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_an_imported_agent_is_called_by_every_client_of_the_hub(
    version: str, tmp_path: Path, port: int
) -> None:
    def run(*arguments: str) -> str:
        environ = {**os.environ, "HOME": str(tmp_path)}
        command = [sys.executable, "-m", "retinue", *arguments]
        found = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stderr
        return found.stdout

    with foreign_agent(version) as peer, program("hub", "--bare", "--port", str(port), cwd=tmp_path) as hub:
        url = hub.url_in("hub at")
        hub.wait_for("0 agents")
        said = run("import", "a2a", peer, "--name", "peer")
        assert said.startswith("peer: 11 skills: say, count, mixed"), said
        assert orjson.loads(run("call", "say", '{"prompt": "hi"}')) == "HI"
        assert orjson.loads(run("call", "count", '{"prompt": "abc"}')) == {"letters": 3, "ratio": 0.5}
        found = orjson.loads(run("find", "three steps", "--json"))
        assert found["skills"][0]["skill"] == "slow"
        async with Client(f"{url}/mcp") as client:
            result = await client.call_tool("peer__say", {"prompt": "over mcp"})
            assert [getattr(block, "text", None) for block in result.content] == ["OVER MCP"]
        assert "peer" in run("imports")
        run("imports", "remove", "peer")
        assert "no imports" in run("imports")
