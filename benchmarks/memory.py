"""Resident memory of a hub and of its agents after some calls, and the wall time of a client command.

Every process is started through the command line, as a user starts it: a bare hub that lists four agents
of one skill each, and commands against that hub. A fastmcp server of one tool is the comparison. The
package is compiled first, as an installer does it: without bytecode each figure is larger.
"""

from __future__ import annotations

import asyncio
import compileall
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from mcp import Client

import retinue
from benchmarks.figures import Figure, median_s

AGENTS = 4
CALLS = 100
RUNS = 9
START_S = 60.0
AGENT_MB = 85
HUB_MB = 125
COMMAND_S = 0.35
COMMAND = ("-m", "retinue")

AGENT = """
from retinue import Agent

agent = Agent("agent-{number}", version="1.0.0")


@agent.skill(expose=True)
async def echo_{number}(text: str) -> dict[str, str]:
    "Returns its input."
    return {{"text": text}}
"""

FAST = """
import sys
from fastmcp import FastMCP

server = FastMCP("fast")


@server.tool
async def echo_1(text: str) -> dict[str, str]:
    "Returns its input."
    return {"text": text}

server.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
"""


def measure() -> list[Figure]:
    """Memory after ``/execute`` calls and again after MCP calls; then commands against the same hub."""
    compileall.compile_dir(Path(retinue.__file__).parent, quiet=1)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="memory-")))
        fast = Process(stack, folder, "-c", FAST)
        asyncio.run(_call_tools(f"{fast.url}/mcp"))
        hub = Process(stack, folder, *COMMAND, "hub", "--bare", "--port")
        hub.wait_for("/health")
        agents = []
        for number in range(1, AGENTS + 1):
            (folder / f"agent{number}.py").write_text(AGENT.format(number=number), encoding="utf-8")
            agent = Process(stack, folder, *COMMAND, "serve", f"agent{number}.py", "--port")
            hub.wait_for(f"/agents/agent-{number}/agent-card")
            agents.append(agent)
        for _ in range(CALLS):
            hub.call("echo_1", {"text": "hello"})
        after = f"after {CALLS}"
        figures = [
            Figure(f"agent {after} /execute", agents[0].memory_mb(), "MB", target=AGENT_MB),
            Figure(f"hub --bare {after} /execute", hub.memory_mb(), "MB", target=HUB_MB),
        ]
        asyncio.run(_call_tools(f"{hub.url}/mcp"))
        asyncio.run(_call_tools(f"{agents[0].url}/mcp"))
        figures += [
            Figure(f"agent {after} MCP calls", agents[0].memory_mb(), "MB"),
            Figure(f"hub --bare {after} MCP calls", hub.memory_mb(), "MB"),
            Figure(f"fastmcp server {after} MCP calls", fast.memory_mb(), "MB"),
            Figure("agent that was not called", agents[1].memory_mb(), "MB"),
        ]
        commands = (("agents",), ("find", "echo"), ("call", "echo_1", '{"text": "hello"}'))
        for command in commands:
            used_s = _children_cpu_s()
            spent_s = median_s(lambda: hub.run(*COMMAND, *command), RUNS)  # noqa: B023 - called at once
            used_s = (_children_cpu_s() - used_s) / (RUNS + 1)
            figures += [
                Figure(f"retinue {command[0]}, at a hub", spent_s, "s", target=COMMAND_S),
                Figure(f"processor time of retinue {command[0]}", used_s, "s"),
            ]
    return figures


def _children_cpu_s() -> float:
    """Processor seconds of the child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def _call_tools(url: str) -> None:
    """Calls of both eras, half of them each."""
    for mode in ("legacy", "2026-07-28"):
        async with Client(url, mode=mode) as client:
            name = next(tool.name for tool in (await client.list_tools()).tools if "echo_1" in tool.name)
            for _ in range(CALLS // 2):
                assert not (await client.call_tool(name, {"text": "hello"})).is_error


class Process:
    """A Python process that serves at a port, given as its last argument; its state is in ``folder``."""

    def __init__(self, stack: ExitStack, folder: Path, *arguments: str) -> None:
        self._folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RETINUE_")}
        self._environment = {**kept, "RETINUE_HOME": str(folder / "state")}
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        log = stack.enter_context((folder / f"log-{port}").open("wb"))
        self._process = subprocess.Popen(
            [sys.executable, *arguments, str(port)],
            env=self._environment,
            cwd=folder,
            stdout=log,
            stderr=log,
        )
        stack.callback(self._stop)
        self._wait_for_port(port)

    def _stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()

    def _wait_for_port(self, port: int) -> None:
        def is_open() -> bool:
            with socket.socket() as tried:
                return tried.connect_ex(("127.0.0.1", port)) == 0

        _wait_until(is_open)

    def wait_for(self, path: str) -> None:
        """Return when a GET of ``path`` answers with 200."""

        def is_there() -> bool:
            try:
                with urllib.request.urlopen(self.url + path, timeout=5) as reply:
                    return bool(reply.status == 200)
            except urllib.error.HTTPError:
                return False

        _wait_until(is_there)

    def call(self, skill: str, params: dict[str, Any]) -> None:
        """One call of ``/execute``."""
        body = json.dumps({"jsonrpc": "2.0", "method": skill, "params": params, "id": 1}).encode()
        headers = {"content-type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/execute", body, headers)) as reply:
            assert "result" in json.loads(reply.read())

    def run(self, *arguments: str) -> None:
        """Run Python to its end in the same state folder."""
        subprocess.run(
            [sys.executable, *arguments],
            check=True,
            env=self._environment,
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def memory_mb(self) -> float:
        """VmRSS, which the kernel gives in kB."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("the process has ended")


def _wait_until(is_true: Callable[[], bool]) -> None:
    until = time.monotonic() + START_S
    while not is_true():
        if time.monotonic() > until:
            raise RuntimeError("a process did not start")
        time.sleep(0.05)
