"""The modules that a hub and an agent must not load before they are used, because they take memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import reserved_port
from tests.processes.running import write_agent

EVERYWHERE = (
    "dbos",
    "google.protobuf",
    "jinja2",
    "mcp",
    "pydantic_ai",
    "rapidfuzz",
    "retinue.mcp.client_configs",
    "retinue.mcp.stdio",
    "retinue.openapi.client",
    "retinue.openapi.codec.reader",
    "retinue.workflows.durable",
    "retinue.workflows.interpreter.think.steps",
    "retinue_koi.server",
    "sqlalchemy",
    "stamina",
    "cel_expr_python",
    "cedarpy",
    "retinue.policies",
)
LEFT_OUT = {
    # keys of cards and tokens come with the first agent
    "hub": (
        *EVERYWHERE,
        "cryptography",
        "joserfc",
        "retinue.flows.run",
        "retinue.mcp.upstream.http_transport",
    ),
    "serve": (
        *EVERYWHERE,
        "retinue.ard",
        "retinue.dashboard",
        "retinue.flows",
        "retinue.hub.hub_agent",
        "retinue.llm",
        "retinue.oci.server",
        "retinue.runtime.imports",
        "retinue.workflows",
        "ruamel",
    ),
}

SCRIPT = """
import os, signal, sys, threading, time
from urllib.request import Request, urlopen
from retinue.cli.program import main

url, path, answer, body, names = sys.argv[1:6]

def use():
    request = Request(url + path, body.encode() or None, {"content-type": "application/json"})
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            with urlopen(request, timeout=60) as reply:
                if answer in reply.read().decode():
                    loaded = [name for name in names.split() if name in sys.modules]
                    print("loaded:", *loaded, flush=True)
                    break
        except OSError:
            pass
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=use, daemon=True).start()
sys.argv[1:] = sys.argv[6:]
main()
"""


@pytest.mark.parametrize("command", ["hub", "serve"])
def test_a_bare_hub_and_an_agent_load_no_library_that_they_do_not_use(
    tmp_path: Path, retinue_home: Path, command: str
) -> None:
    """The hub has offered its built-in workflows as prompts, the agent has answered a call."""
    if command == "hub":
        use, arguments = ("/agent-card", "plan-execute", ""), ["hub", "--bare"]
    else:
        agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "it is me")
        body = '{"jsonrpc": "2.0", "id": 1, "method": "who", "params": {}}'
        use, arguments = ("/execute", "it is me", body), ["serve", str(agent)]
    with reserved_port() as port:
        words = (f"http://127.0.0.1:{port}", *use, " ".join(LEFT_OUT[command]), *arguments)
        ended = subprocess.run(
            [sys.executable, "-c", SCRIPT, *words, "--port", str(port)],
            cwd=tmp_path,
            env={**os.environ, "RETINUE_HUB__MODELS": "[]"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    lines = [line for line in ended.stdout.splitlines() if line.startswith("loaded:")]
    assert lines == ["loaded:"], ended.stderr


WITHOUT_CEDAR = """
import importlib, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "cedarpy":
            raise ModuleNotFoundError("No module named 'cedarpy'", name="cedarpy")

sys.meta_path.insert(0, Missing())
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_hubs_workers_and_runs_need_no_engine_of_policies() -> None:
    names = (
        "retinue.runtime.hub_process",
        "retinue.runtime.hub_processes.running",
        "retinue.runtime.worker_process",
        "retinue.runtime.agent_process",
        "retinue.workflows.durable.runs",
        "retinue.hub.policies",
        "retinue.cli.managing.policy",
    )
    command = [sys.executable, "-c", WITHOUT_CEDAR, *names]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
