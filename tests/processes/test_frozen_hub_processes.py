"""A process of a hub that is frozen is killed and started again; one of a machine that sleeps is not."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import urllib3

from tests.ports import reserve_port
from tests.processes.freezing import freeze
from tests.processes.hub_processes import find_fork_server, find_leader, kill, list_children
from tests.processes.running import Program, execute, is_running, program, wait_until, write_agent
from tests.time_bounds import Stopwatch

_UP = re.compile(r'^retinue_hub_process_up\{number="(\d)"\} 1\.0$', re.MULTILINE)
_KILLING = re.compile(r"hub process (\d) has not moved for 30 s; killing it")
_LIMIT_S = 180.0
_LOOKS = 3
"""Looks of a parent that goes on before its processes do."""


def _request(url: str, path: str, method: str) -> str:
    """What a hub answers over a connection of its own."""
    request = {"jsonrpc": "2.0", "method": method, "id": 1}
    head = {"connection": "close"}
    reply = urllib3.request("POST", url + path, json=request, headers=head, timeout=_LIMIT_S, retries=False)
    return reply.data.decode()


def _list_serving(url: str) -> set[str]:
    head = {"connection": "close"}
    reply = urllib3.request("GET", f"{url}/metrics", headers=head, timeout=_LIMIT_S, retries=False)
    return set(_UP.findall(reply.data.decode()))


def _count_switches(process: int) -> int:
    """How often a process has waited, as its parent does between two looks."""
    status = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status, re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_frozen_processes_of_a_hub_are_killed_and_those_of_a_sleeping_machine_go_on(
    tmp_path: Path, retinue_home: Path, port: int
) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    agent.write_text(agent.read_text().replace("read_only", "expose=True, read_only"))
    # no socket has a place in this folder for temporary files
    long_place = tmp_path / ("x" * 100)
    long_place.mkdir()
    apart = {"RETINUE_HOME": str(tmp_path / "apart"), "TMPDIR": str(long_place)}
    arguments = ("hub", "--bare", "--processes")
    with (
        program(*arguments, "2", "--port", str(reserve_port()), cwd=tmp_path, environment=apart) as asleep,
        program(*arguments, "3", "--port", str(port), cwd=tmp_path) as hub,
        program("serve", str(agent), cwd=tmp_path) as served,
        ThreadPoolExecutor(2) as pool,
        ExitStack() as stack,
    ):
        url = hub.url_in("hub at")
        served.wait_for("published")
        wait_until(lambda: _list_serving(url) == {"0", "1", "2"}, "all processes serve")
        sleeping = stack.enter_context(_asleep(asleep))
        fork_server = find_fork_server(hub.process.pid)
        serving = list_children(fork_server)
        leader = find_leader(retinue_home, serving)
        frozen = {leader, (serving - {leader}).pop()}
        for process in frozen:
            freeze(process)
        listing = pool.submit(_request, url, "/execute", "list_agents")
        wait_until(
            lambda: _is_answered_soon(url) and not any(map(is_running, frozen)),
            "the frozen processes are killed while another one answers",
            limit_s=_LIMIT_S,
        )
        assert "one-agent" in listing.result(), "the next leader answers what has waited"
        wait_until(lambda: _list_serving(url) == {"0", "1", "2"}, "all serve again", limit_s=_LIMIT_S)
        assert len(set(_KILLING.findall(hub.output))) == len(frozen)
        assert list_children(fork_server) & serving == serving - frozen
        _wake(asleep, sleeping)
        assert asleep.end() == 0
        assert "ended; starting" not in asleep.output


def _is_answered_soon(url: str) -> bool:
    stopwatch = Stopwatch()
    assert "one" in _request(url, "/agents/one-agent/execute", "who")
    stopwatch.check(10)
    return True


def test_a_frozen_fork_server_is_killed_and_processes_start_without_it(tmp_path: Path, port: int) -> None:
    with program("hub", "--bare", "--processes", "2", "--port", str(port), cwd=tmp_path) as hub:
        url = hub.url_in("hub at")
        wait_until(lambda: _list_serving(url) == {"0", "1"}, "both processes serve")
        fork_server = find_fork_server(hub.process.pid)
        serving = list_children(fork_server)
        freeze(fork_server)
        try:
            kill(min(serving))
            wait_until(lambda: not is_running(fork_server), "the fork server is killed")
            wait_until(lambda: len(list_children(hub.process.pid)) == 1, "the process is started again")
            wait_until(lambda: _list_serving(url) == {"0", "1"}, "both processes serve again")
        finally:
            os.kill(fork_server, signal.SIGKILL)
        assert hub.end() == 0


_STOP = """
import os, signal
from pathlib import Path
from retinue.runtime.hub_processes.fork_server import forking

if __name__ == "__main__":
    with forking(lambda arguments: os._exit(0)) as server:
        (pid,) = Path("/proc/self/task", str(os.getpid()), "children").read_text().split()
        os.kill(int(pid), signal.SIGSTOP)
"""


def test_a_frozen_fork_server_ends_with_its_hub(tmp_path: Path) -> None:
    (tmp_path / "stop.py").write_text(_STOP)
    subprocess.run([sys.executable, "stop.py"], cwd=tmp_path, check=True, timeout=_LIMIT_S)


@contextmanager
def _asleep(hub: Program) -> Iterator[set[int]]:
    """Stop a whole hub until the end; its processes beside the parent."""
    wait_until(lambda: len(_list_serving(hub.url_in("hub at"))) == 2, "both processes serve")
    fork_server = find_fork_server(hub.process.pid)
    processes = {fork_server, *list_children(fork_server)}
    everything = (hub.process.pid, *processes)
    try:
        for process in everything:
            freeze(process)
        yield processes
    finally:
        for process in filter(is_running, everything):
            os.kill(process, signal.SIGCONT)


def _wake(hub: Program, processes: set[int]) -> None:
    """Let a hub go on, the parent first; it answers with the processes that it had."""
    before = _count_switches(hub.process.pid)
    os.kill(hub.process.pid, signal.SIGCONT)
    wait_until(lambda: _count_switches(hub.process.pid) >= before + _LOOKS, "the parent looks at them")
    for process in processes:
        os.kill(process, signal.SIGCONT)
    assert "result" in execute(hub.url_in("hub at"), "list_agents")
    assert all(map(is_running, processes))
    assert not _KILLING.search(hub.output)
