"""Orchestration by real processes: hub, agents, the bridge over stdio, and the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from retinue.storage.state import State
from tests.processes.running import execute, program, run_apart, wait_until
from tests.requirements import requirement
from tests.seeds.seed_002 import NAMES

MODELS = '''
from retinue import Agent


def make(name, planning, execution):
    agent = Agent(name, version="1.0.0", scores={"planning": planning, "execution": execution, "review": 0.8})

    def add(role):
        @agent.skill(role, roles=[role], expose=True)
        async def answer(prompt: str) -> str:
            """Answers a prompt."""
            return f"{name} {role}s after {prompt.count('Asked:')} turns"

    for role in ("plan", "execute", "review"):
        add(role)
    return agent


claude, gemini = make("claude", 0.95, 0.85), make("gemini", 0.85, 0.95)
'''


def retinue(*arguments: str, cwd: Path) -> str:
    """The output of a command that succeeds."""
    done = run_apart(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def models(tmp_path: Path) -> Path:
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    return path


@requirement("L-27")
def test_the_bridge_gives_the_tools_and_the_top_level_metadata_of_the_seed(
    retinue_home: Path, tmp_path: Path, models: Path
) -> None:
    """The tools and the identity of seed 002 over stdio, with a durable run (exchanges 2-1, 2-15)."""
    environment = {**os.environ, "RETINUE_HUB__IDENTITY": "lexical"}
    client = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    call = {"name": "orchestrate", "arguments": {"prompt": "x", "preferences": {"workflow": "plan-execute"}}}
    messages: list[dict[str, Any]] = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
        {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": call},
    ]
    with (
        program("hub", "--bare", "--port", "0", cwd=tmp_path, environment=environment) as hub,
        program("serve", f"{models}:claude", "--port-may-move", cwd=tmp_path) as claude,
        program("serve", f"{models}:gemini", "--port-may-move", cwd=tmp_path) as gemini,
    ):
        hub.wait_for("hub at")
        for served in (claude, gemini):
            served.wait_for("published")
        piped = "".join(orjson.dumps(one).decode() + "\n" for one in messages)
        bridge = [sys.executable, "-m", "retinue", "mcp"]
        done = subprocess.run(
            bridge, cwd=tmp_path, input=piped, capture_output=True, text=True, timeout=120, check=True
        )
        lines = done.stdout.splitlines()
    answers = {one["id"]: one["result"] for line in lines if "result" in (one := orjson.loads(line))}
    info = answers[1]["serverInfo"]
    assert (info["name"], info["version"]) == ("lexical", "2.0.0")
    assert set(NAMES) <= {tool["name"] for tool in answers[2]["tools"]}
    result = answers[3]
    metadata = {"workflow": "plan-execute", "agents": ["claude", "gemini"], "cached": False}
    assert metadata.items() <= result["metadata"].items()
    assert result["metadata"] == result["structuredContent"]["metadata"]
    assert orjson.loads(result["content"][0]["text"])["output"] == "gemini executes after 0 turns"


@requirement("L-35")
def test_figures_and_conversations_outlive_a_killed_hub(
    retinue_home: Path, tmp_path: Path, models: Path
) -> None:
    """The command line asks; what it said and how often is still known to the next hub."""
    state = State(retinue_home)
    asked = ("orchestrate", "Write a poem", "--workflow", "direct", "--session", "poem", "--json")
    with program("serve", f"{models}:claude", "--port-may-move", cwd=tmp_path) as served:
        served.wait_for("published")
        with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
            hub.wait_for("hub at")
            first = orjson.loads(retinue(*asked, cwd=tmp_path))
            assert (first["output"], first["agents"]) == ("claude executes after 0 turns", ["claude"])
            url = hub.url_in("hub at")
            token = state.local_token()
            rows = execute(url, "list_agents", {"includeMetrics": True}, token)["result"]["agents"]
            assert rows[0]["metrics"]["totalRequests"] == 1
            found = retinue("capabilities", "a poem", "--json", cwd=tmp_path)
            assert orjson.loads(found)["recommendations"][0]["agent"] == "claude"
            assert "forgot" in retinue("cache", "clear", cwd=tmp_path)
            hub.send(signal.SIGKILL)
            hub.wait()
        with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
            hub.wait_for("hub at")
            url = hub.url_in("hub at")
            rows = execute(url, "list_agents", {"includeMetrics": True}, token)["result"]["agents"]
            assert rows[0]["metrics"]["totalRequests"] == 1
            again = orjson.loads(retinue(*asked, cwd=tmp_path))
            assert again["output"] == "claude executes after 1 turns"
            wait_until(lambda: state.sessions.is_dir(), "the conversation is kept")
            (file,) = state.sessions.iterdir()
            assert file.stat().st_mode & 0o077 == 0
