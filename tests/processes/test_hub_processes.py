"""A hub of several processes at one address: any of them may end, and the others go on."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import urllib3

from retinue.storage.state import State
from tests.processes.running import descendants, execute, is_running, program, wait_until, write_agent

_AGENT_CALLS = re.compile(r'^retinue_calls_total\{agent="one-agent".*\} (\d+)', re.MULTILINE)
_UP = re.compile(r'^retinue_hub_process_up\{number="(\d)"\} 1\.0$', re.MULTILINE)
_ONCE = {"connection": "close"}
"""Each request has a connection of its own, because a process that is killed takes its connections along."""


def _metrics(url: str) -> str:
    return urllib3.request("GET", f"{url}/metrics", headers=_ONCE, retries=False).data.decode()


def _calls(url: str, count: int) -> list[float]:
    """Call the agent over a new connection each, by turns over MCP; the seconds that each call took."""
    spent_s = []
    for number in range(count):
        began = time.monotonic()
        assert (_call_tool(url) if number % 2 else _call(url)) == "one"
        spent_s.append(time.monotonic() - began)
    return spent_s


def _call(url: str) -> str:
    request = {"jsonrpc": "2.0", "method": "who", "id": 1}
    result: str = _post(f"{url}/agents/one-agent/execute", request, {})["result"]
    return result


def _call_tool(url: str) -> str:
    tool, prefix = "one-agent__who", "io.modelcontextprotocol/"
    meta = {
        f"{prefix}protocolVersion": "2026-07-28",
        f"{prefix}clientInfo": {"name": "test", "version": "1"},
        f"{prefix}clientCapabilities": {},
    }
    params = {"name": tool, "arguments": {}, "_meta": meta}
    head = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": tool,
    }
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    reply = _post(f"{url}/mcp", request, head)
    assert "result" in reply, reply
    text: str = reply["result"]["content"][0]["text"]
    return text


def _post(url: str, request: object, head: Mapping[str, str]) -> Any:
    headers = {**_ONCE, **head}
    return urllib3.request("POST", url, json=request, headers=headers, timeout=30.0, retries=False).json()


def test_any_process_of_a_hub_may_be_killed_while_the_others_answer(
    tmp_path: Path, retinue_home: Path, port: int
) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    agent.write_text(agent.read_text().replace("read_only", "expose=True, read_only"))
    with (
        program("hub", "--bare", "--processes", "2", "--port", str(port), cwd=tmp_path) as hub,
        program("serve", str(agent), cwd=tmp_path) as served,
    ):
        url = hub.url_in("hub at")
        served.wait_for("published")
        wait_until(lambda: set(_UP.findall(_metrics(url))) == {"0", "1"}, "both processes serve")
        address = State(retinue_home).read_hub()
        assert address is not None
        assert (address.pid, address.processes) == (hub.process.pid, 2)
        _calls(url, 20)
        # calls are counted in batches
        wait_until(lambda: sum(map(int, _AGENT_CALLS.findall(_metrics(url)))) == 20, "all are counted")
        first = _find_processes(hub.process.pid)
        assert len(first) == 2
        for leads in (False, True):
            before = _find_processes(hub.process.pid)
            leader = _find_leader(retinue_home, before)
            (follower,) = before - {leader}
            _kill(leader if leads else follower)
            # a busy machine starts the next process meanwhile
            assert max(_calls(url, 20)) < 20, "no call waits for the killed process"
            _wait_for_another(hub.process.pid, before)
            began = time.monotonic()
            assert execute(url, "list_agents")["result"]["agents"][0]["name"] == "one-agent"
            assert time.monotonic() - began < 10
        assert is_running(hub.process.pid)
        wait_until(lambda: set(_UP.findall(_metrics(url))) == {"0", "1"}, "both serve again")
        left = descendants(hub.process.pid)
        assert hub.end(signal.SIGTERM) == 0
        wait_until(lambda: not any(map(is_running, left)), "all of them have ended")
    assert not (retinue_home / "hub.json").exists()


def _kill(process: int) -> None:
    """Kill a process; returns when it has ended, because until then it may accept a connection."""
    os.kill(process, signal.SIGKILL)
    wait_until(lambda: not is_running(process), "the killed process has ended")


def _wait_for_another(parent: int, before: set[int]) -> None:
    wait_until(lambda: len(_find_processes(parent) - before) == 1, "the process is started again")


def _find_processes(parent: int) -> set[int]:
    return set(map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split()))


def _find_leader(home: Path, processes: set[int]) -> int:
    """The process that holds the lock of the leader."""
    lock = (home / "hub-leader.lock").stat().st_ino
    lines = Path("/proc/locks").read_text().splitlines()
    (leader,) = {int(line.split()[4]) for line in lines if f":{lock} " in line} & processes
    return leader
