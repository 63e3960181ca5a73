"""The limits of a hub of several processes hold, whichever of them is killed meanwhile."""

from __future__ import annotations

import json
import re
import sys
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import urllib3

from retinue.storage.state import State
from retinue.web.issued_tokens import TokenFile
from tests.processes.commands import retinue
from tests.processes.hub_processes import find_fork_server, find_leader, kill, list_children, wait_for_another
from tests.processes.running import program, wait_until
from tests.time_bounds import Stopwatch

_AGENT = '''
import asyncio
from pathlib import Path

from retinue import Agent

agent = Agent("counting", version="1.0.0")
HERE = Path(__file__).parent


@agent.skill(expose=True, idempotent=True)
async def count(name: str) -> int:
    """Counts its calls by name."""
    with (HERE / name).open("a") as calls:
        calls.write("x")
    return (HERE / name).stat().st_size


@agent.skill(expose=True)
async def wait(name: str) -> str:
    """Counts its calls, and waits for the end of the test."""
    with (HERE / name).open("a") as calls:
        calls.write("x")
    while not (HERE / "over").exists():
        await asyncio.sleep(0.05)
    return name
'''
_IMPORTED = """
import json
import sys

TOOL = {"name": "shout", "inputSchema": {"type": "object"}}
FACTS = {"capabilities": {"tools": {}}, "serverInfo": {"name": "loud", "version": "1"}}
for line in sys.stdin:
    request = json.loads(line)
    method, params = request.get("method"), request.get("params", {})
    if method == "initialize":
        result = {"protocolVersion": "2025-06-18", **FACTS}
    elif method == "tools/list":
        result = {"tools": [TOOL]}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": "HI"}]}
    else:
        result = {}
    if "id" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""
_BURST, _AT_ONCE, _IN_FLIGHT, _CHAIN, _PROCESSES = 30, 3, 6, 5, 2
_MOST_IN_FLIGHT = _IN_FLIGHT + _PROCESSES - 1
"""Each process may exceed the limit by one call."""

_LIMITS = {
    "RETINUE_LIMITS__CALLS_PER_S": "0.0001",
    "RETINUE_LIMITS__BURST": str(_BURST),
    "RETINUE_LIMITS__IN_FLIGHT": str(_IN_FLIGHT),
    "RETINUE_TRACE__CALLS": str(_CHAIN),
}
_UP = re.compile(r'^retinue_hub_process_up\{number="(\d)"\} 1\.0$', re.MULTILINE)
_NO_LIMITS = {"RETINUE_LIMITS__IN_FLIGHT": "1000"}


class _Hub:
    """A hub of two processes, whose callers have a connection for each call."""

    def __init__(self, url: str, parent: int, home: Path) -> None:
        self._url = url
        self._parent = parent
        self._keys = TokenFile(home / "keys")
        self._home = home

    def make_caller(self) -> str:
        """A caller of its own, whose rate nobody else uses; its token."""
        return self._keys.issue(["mesh"], name=uuid.uuid4().hex)[1]

    def call(
        self, token: str, skill: str, name: str, agent: str = "counting", **headers: str
    ) -> dict[str, Any]:
        """The response; {"lost": True} if the process ended before it answered."""
        request = {"jsonrpc": "2.0", "id": 1, "method": skill, "params": {"name": name}}
        head = {"authorization": f"Bearer {token}", "connection": "close", **headers}
        try:
            reply = urllib3.request(
                "POST",
                f"{self._url}/agents/{agent}/execute",
                json=request,
                headers={name.replace("_", "-"): value for name, value in head.items()},
                retries=False,
                timeout=120.0,
            )
            response: dict[str, Any] = reply.json()
            return response
        except (urllib3.exceptions.HTTPError, ValueError):
            return {"lost": True}

    def follow(self, method: str, path: str, **headers: str) -> urllib3.BaseHTTPResponse:
        """What a browser gets, over a connection of its own."""
        head = {"accept": "text/html", "connection": "close", "sec-fetch-site": "same-origin", **headers}
        url = self._url + path
        return urllib3.request(method, url, headers=head, retries=False, redirect=False, timeout=120.0)

    def kill(self, *, leader: bool) -> None:
        """Kill one of the processes; returns when another one has its place."""
        fork_server = find_fork_server(self._parent)
        before = list_children(fork_server)
        leading = find_leader(self._home, before)
        killed = leading if leader else (before - {leading}).pop()
        kill(killed)
        wait_for_another(fork_server, before - {killed})

    def list_serving(self) -> set[str]:
        """The numbers of the processes that take connections."""
        head = {"connection": "close"}
        reply = urllib3.request("GET", f"{self._url}/metrics", headers=head, timeout=120.0, retries=False)
        return set(_UP.findall(reply.data.decode()))


def test_no_limit_is_exceeded_while_each_process_of_a_hub_is_killed(
    tmp_path: Path, retinue_home: Path, port: int
) -> None:
    (tmp_path / "counting.py").write_text(_AGENT)
    imported = tmp_path / "imported.py"
    imported.write_text(_IMPORTED)
    arguments = ("hub", "--bare", "--processes", str(_PROCESSES), "--port", str(port))
    with (
        TemporaryDirectory() as temporary,
        program(*arguments, cwd=tmp_path, environment={**_LIMITS, "TMPDIR": temporary}) as started,
        program("serve", "counting.py", cwd=tmp_path, environment=_NO_LIMITS) as served,
        ThreadPoolExecutor(8 * _IN_FLIGHT) as pool,
    ):
        hub = _Hub(started.url_in("hub at"), started.process.pid, retinue_home)
        served.wait_for("published")
        wait_until(
            lambda: "result" in hub.call(hub.make_caller(), "count", "first"), "the hub knows the agent"
        )
        try:
            assert f"{_PROCESSES} processes that serve" in retinue("status", cwd=tmp_path)
            session = _use_a_link(hub, pool)
            importing = ("import", "mcp-server", "loud", "--", sys.executable, str(imported))
            assert "1 skill" in retinue(*importing, cwd=tmp_path, environment={"HOME": str(tmp_path)})
            _remove_old_files(Path(temporary))
            _exceed_a_rate_and_repeat_a_key(hub, tmp_path)
            assert hub.follow("GET", "/", cookie=session).status == 200, "the next leader knows the session"
            _exceed_a_chain(hub, tmp_path, pool)
            _exceed_the_calls_in_flight(hub, tmp_path, pool)
        finally:
            (tmp_path / "over").touch()
    assert not State(retinue_home).read_hub()


def _count(tmp_path: Path, name: str) -> int:
    """How many calls have reached the agent."""
    file = tmp_path / name
    return file.stat().st_size if file.exists() else 0


def _remove_old_files(temporary: Path) -> None:
    """Do as a machine that removes old files from its folders for temporary ones."""
    (shared,) = temporary.glob("retinue-hub-*")
    for file in filter(Path.is_file, shared.iterdir()):
        file.unlink()


def _use_a_link(hub: _Hub, pool: ThreadPoolExecutor) -> str:
    """Several browsers follow a one-time link at once; the cookie of the one that is let in."""
    bearer = f"Bearer {hub.make_caller()}"
    path = json.loads(hub.follow("POST", "/ui/links", authorization=bearer).data)["path"]
    replies = list(pool.map(lambda _: hub.follow("POST", path), range(_AT_ONCE * _PROCESSES)))
    (cookie,) = [reply.headers["set-cookie"] for reply in replies if "set-cookie" in reply.headers]
    session = str(cookie.partition(";")[0])
    pages = [hub.follow("GET", "/", cookie=session) for _ in range(_AT_ONCE)]
    assert all(f"{_PROCESSES} processes" in page.data.decode() for page in pages)
    return session


def _exceed_a_rate_and_repeat_a_key(hub: _Hub, tmp_path: Path) -> None:
    """A caller makes more calls than its burst, another one repeats a call, while processes are killed."""
    token, other, key = hub.make_caller(), hub.make_caller(), uuid.uuid4().hex
    for leader in (False, True):
        assert [hub.call(other, "count", "key", idempotency_key=key)["result"] for _ in range(4)] == [1] * 4
        with ThreadPoolExecutor(_AT_ONCE) as callers:
            for _ in range(_BURST // 3):
                callers.submit(hub.call, token, "count", "rate")
            stopwatch = Stopwatch()
            hub.kill(leader=leader)
            if leader:
                wait_until(lambda: "HI" in str(hub.call(other, "shout", "", agent="loud")), "imported")
                stopwatch.check(3)
    replies = [hub.call(token, "count", "rate") for _ in range(_BURST)]
    assert {reply["error"]["data"]["type"] for reply in replies if "error" in reply} == {"busy"}
    # a call that a killed process has counted may not have reached the agent
    assert _BURST - _AT_ONCE * _PROCESSES <= _count(tmp_path, "rate") <= _BURST
    assert hub.call(other, "count", "key", idempotency_key=key)["result"] == 1
    assert _count(tmp_path, "key") == 1


def _exceed_a_chain(hub: _Hub, tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    """The calls of a chain count together, whichever process gets them."""
    # a chain that begins while its process still starts would be counted anew by it
    wait_until(lambda: hub.list_serving() == {"0", "1"}, "the process that was started last serves")
    token, trace = hub.make_caller(), {"x_openstarry_trace_id": uuid.uuid4().hex}
    begun = pool.submit(hub.call, token, "wait", "chain", **trace)
    wait_until(lambda: _count(tmp_path, "chain") == 1, "the first call of the chain runs")
    replies = [hub.call(token, "count", "chain", **trace) for _ in range(2 * _CHAIN)]
    assert sum("result" in reply for reply in replies) == _CHAIN - 1, replies
    assert not begun.done()
    assert _count(tmp_path, "chain") == _CHAIN


def _exceed_the_calls_in_flight(hub: _Hub, tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    """Many calls at once, before and after a process is killed."""
    calls: list[Future[dict[str, Any]]] = []
    for is_killed in (False, True):
        if is_killed:
            hub.kill(leader=False)
        token = hub.make_caller()
        calls += [pool.submit(hub.call, token, "wait", "flight") for _ in range(3 * _IN_FLIGHT)]
        _wait_until_the_others_are_refused(calls)


def _wait_until_the_others_are_refused(calls: list[Future[dict[str, Any]]]) -> None:
    def list_running() -> list[Future[dict[str, Any]]]:
        return [call for call in calls if not call.done()]

    wait_until(lambda: len(list_running()) <= _MOST_IN_FLIGHT, "all others are refused")
    assert list_running()
