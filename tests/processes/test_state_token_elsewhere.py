"""The state token and hubs elsewhere: every command is pointed at a hub that keeps whatever it is sent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
import pytest

from retinue.cli.program import TABLE
from retinue.storage.mesh_key import mesh_key
from retinue.storage.state import State
from tests.processes.names import Names
from tests.processes.recorder import Recorder, recorder
from tests.processes.running import program, write_agent
from tests.processes.secret_forms import find_secret

AT_HUB: dict[str, tuple[str, ...]] = {
    "doctor": (),
    "dashboard": ("--no-browser",),
    "mcp": (),
    "top": (),
    "agents": (),
    "show": ("x",),
    "find": ("x",),
    "history": (),
    "wishes": (),
    "receipts": (),
    "call": ("x", "{}"),
    "ask": ("--all",),
    "stubs": ("x.py",),
    "import": ("mcp-server", "y", "--url", "http://127.0.0.1:9/mcp"),
    "imports": (),
    "chat": (),
    "orchestrate": ("x",),
    "capabilities": ("x",),
    "cache": ("clear",),
    "run": ("x",),
    "workflows": (),
    "runs": (),
    "resume": ("x",),
    "cancel": ("x",),
    "rerun": ("x", "--from", "a"),
    "signal": ("x", "go"),
    "schedules": (),
    "artifacts": (),
    "approvals": (),
    "forget": ("agents/one",),
    "serve": ("one_agent_1_0_0.py",),
}
"""The commands that ask the hub, with arguments."""

AT_REGISTRY: dict[str, tuple[str, ...]] = {
    "publish": ("card.json", "--registry"),
    "pull": ("agents/x", "--registry"),
    "mirror": ("copies",),
}
"""The commands that ask a registry, which may be a hub of another state; its URL is the last argument."""

AT_NEITHER = frozenset(
    (
        "backup",
        "completion",
        "connect",
        "context",
        "demo",
        "docs",
        "hub",
        "keys",
        "koi",
        "logs",
        "new",
        "policy",
        "restore",
        "status",
    )
) | {"stop", "token", "worker", "lock", "pack", "up", "down", "team", "diff", "record-team", "replay-team"}

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    },
}


@pytest.fixture
def stranger() -> Iterator[Recorder]:
    with recorder() as server:
        yield server


def run(name: str, folder: Path, hub: str, names: Names) -> None:
    """Run a command to its end, whatever it makes of the answers of that hub."""
    arguments = (*AT_REGISTRY[name], hub) if name in AT_REGISTRY else AT_HUB[name]
    environment = {**names.environment, "RETINUE_HUB": hub, "HOME": str(folder)}
    if name == "serve":
        with program(name, *arguments, cwd=folder, environment=environment) as served:
            served.wait_for("published")
        return
    subprocess.run(
        [sys.executable, "-m", "retinue", name, *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        input=orjson.dumps(INITIALIZE) + b"\n" if name == "mcp" else b"",
        capture_output=True,
        timeout=100,
        check=False,
    )


def run_all(folder: Path, hub: str, names: Names, stranger: Recorder) -> dict[str, bytes]:
    """What each command sent; a command is told apart from the others by the path of its hub."""
    State(Path(os.environ["RETINUE_HOME"])).prepare()
    write_agent(folder, "one-agent", "1.0.0", "who", "one")
    tables = b'[x]\nurl = "http://127.0.0.1:9/mcp"\n'
    (folder / "copies").mkdir(exist_ok=True)
    (folder / "card.json").write_text('{"name": "x", "url": "http://127.0.0.1:9", "skills": [{"id": "x"}]}')
    (Path(os.environ["RETINUE_HOME"]) / "imports.toml").write_bytes(tables)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda name: run(name, folder, f"{hub}/as-{name}-", names), AT_HUB))
        list(pool.map(lambda name: run(name, folder, hub, names), AT_REGISTRY))
    return {
        name: b"\n".join(one for one in stranger.requests if f"/as-{name}-".encode() in one)
        for name in AT_HUB
    }


@pytest.mark.timeout(600)
def test_the_state_token_goes_to_a_hub_on_this_machine_and_to_no_other(
    tmp_path: Path, retinue_home: Path, stranger: Recorder
) -> None:
    names = Names(tmp_path)
    names.set(hub_example="127.0.0.1")
    tokens = [State(retinue_home).local_token().encode(), State(retinue_home).owner_token().encode()]
    key = mesh_key(State(retinue_home).keys)
    challenge = (401, {"www-authenticate": 'Basic realm="registry"'}, b"{}")
    stranger.answer = lambda method, path: challenge if path.startswith("/v2") else None
    sent = run_all(tmp_path, f"http://hub.example:{stranger.port}", names, stranger)
    # a link to a dashboard is made for the bearer of a token, and there is none for that hub
    assert [name for name, found in sent.items() if not found] == ["dashboard"], "they have asked the hub"
    assert stranger.received.count(b" /v2") >= 2, "and the registry"
    assert [find_secret(token, stranger.received) for token in tokens] == [None, None]
    assert find_secret(key, stranger.received) is None
    assert b"rtnm_" not in stranger.received


def test_every_command_is_listed_here() -> None:
    assert {*AT_HUB, *AT_REGISTRY, *AT_NEITHER} == set(TABLE)


@pytest.mark.timeout(600)
def test_the_state_token_does_not_follow_a_redirect_of_a_hub_on_this_machine(
    tmp_path: Path, retinue_home: Path, stranger: Recorder
) -> None:
    tokens = [State(retinue_home).local_token().encode(), State(retinue_home).owner_token().encode()]
    # the state's own hub, as far as the state knows
    State(retinue_home).prepare()
    State(retinue_home).write_hub(stranger.url)
    with recorder() as elsewhere:
        moved = (307, {"location": f"http://hub.example:{elsewhere.port}/execute"}, b"")
        alive: tuple[int, dict[str, str], bytes] = (401, {}, b"{}")
        stranger.answer = lambda method, path: alive if path.endswith("/agent-card") else moved
        names = Names(tmp_path)
        names.set(hub_example="127.0.0.1")
        sent = run_all(tmp_path, stranger.url, names, stranger)
        silent = [name for name, requests in sent.items() if not any(token in requests for token in tokens)]
        assert silent == [], "here they send one"
        assert elsewhere.connections == 0
