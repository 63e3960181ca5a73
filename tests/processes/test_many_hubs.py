"""A rolling restart of two hubs behind a TCP balancer loses no call (docs/guides/many-hubs.md).

Each hub has one process, or two.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import orjson
import pytest
import urllib3

from tests.ports import reserve_port
from tests.processes.running import Program, execute, is_free, program, wait_until
from tests.services import get_program

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "many-hubs.md"
BALANCERS = ("haproxy", "nginx")
CLIENTS = 3
LONG_S = 4.0
WAIT_S = 60.0

AGENT = '''
import asyncio

from retinue import Agent

agent = Agent("slow-agent", version="1.0.0")


@agent.skill(expose=True)
async def work(seconds: float) -> str:
    """Works for some seconds."""
    await asyncio.sleep(seconds)
    return "done"
'''


class Callers:
    """Clients that call through balancers without a pause, over connections that they keep open."""

    def __init__(self) -> None:
        self.calls = 0
        self.failures: list[str] = []
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, url: str, seconds: float, *, repeat: bool = True) -> None:
        thread = threading.Thread(target=self._call, args=(url, seconds, repeat))
        self._threads.append(thread)
        thread.start()

    def wait_for(self, calls: int) -> None:
        """Wait until so many further calls have ended."""
        until = self.calls + calls
        wait_until(lambda: self.calls >= until, "clients call")

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(WAIT_S)

    def _call(self, url: str, seconds: float, repeat: bool) -> None:
        work = {"jsonrpc": "2.0", "method": "work", "params": {"seconds": seconds}, "id": 1}
        # of several processes the leader answers this one
        listing = {"jsonrpc": "2.0", "method": "list_agents", "id": 1}
        with urllib3.PoolManager(retries=False, timeout=WAIT_S) as pool:
            while not self._over.is_set():
                self._request(pool, url, work, b'"done"')
                self.calls += 1
                if not repeat:
                    return
                self._request(pool, url, listing, b'"slow-agent"')

    def _request(self, pool: urllib3.PoolManager, url: str, request: object, expected: bytes) -> None:
        headers = {"content-type": "application/json"}
        try:
            reply = pool.request("POST", f"{url}/execute", body=orjson.dumps(request), headers=headers)
        except urllib3.exceptions.HTTPError as error:
            self.failures.append(repr(error))
        else:
            if reply.status != 200 or expected not in reply.data:
                self.failures.append(f"{reply.status} {reply.data[:200]!r}")


def configuration(name: str, port: int, hubs: list[int]) -> str:
    """A configuration of the guide with the addresses of this test."""
    block = re.search(rf"```text\n# {re.escape(name)}\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert block is not None
    text = block[1].replace("bind :9000", f"bind 127.0.0.1:{port}")
    text = text.replace("listen 9000", f"listen 127.0.0.1:{port}")
    for number, hub in enumerate(hubs):
        text = text.replace(f"10.0.0.{5 + number}:9000", f"127.0.0.1:{hub}")
    return text


@contextmanager
def balancer(kind: str, folder: Path, port: int, hubs: list[int]) -> Iterator[str]:
    name = {"haproxy": "haproxy.cfg", "nginx": "nginx.conf"}[kind]
    executable = get_program(kind)
    file = folder / name
    file.write_text(configuration(name, port, hubs))
    command = [executable, "-f", str(file), "-db"]
    if kind == "nginx":
        options = f"daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;"
        command = [executable, "-p", str(folder), "-c", str(file), "-e", f"{folder}/error.log", "-g", options]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: not is_free(port), f"{kind} listens")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(WAIT_S)


def is_ready(port: int) -> bool:
    try:
        url = f"http://127.0.0.1:{port}/ready"
        return urllib3.request("GET", url, timeout=WAIT_S, retries=False).status == 200
    except urllib3.exceptions.HTTPError:
        return False


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_rolling_restart_behind_a_balancer_loses_no_call(tmp_path: Path, processes: str) -> None:
    for kind in BALANCERS:
        get_program(kind)
    ports = [reserve_port(), reserve_port()]
    leave_s = re.search(r"leave_s = ([0-9.]+)", GUIDE.read_text())
    assert leave_s is not None
    cards = tmp_path / "cards"
    cards.mkdir()
    (tmp_path / "agent.py").write_text(AGENT)
    shared = {
        "RETINUE_REGISTRIES": f'["{cards}"]',
        "RETINUE_DOORS__HOSTS": '["mesh.example"]',
        "RETINUE_TIMEOUTS__LEAVE_S": leave_s[1],
    }

    def home(name: str) -> dict[str, str]:
        return {"RETINUE_HOME": str(tmp_path / name), **shared}

    def start(number: int) -> Program:
        hub = ("hub", "--bare", "--processes", processes, "--port", str(ports[number]))
        running = stack.enter_context(program(*hub, cwd=tmp_path, environment=home(f"hub{number}")))
        wait_until(lambda: is_ready(ports[number]), "the hub is ready")
        return running

    with ExitStack() as stack:
        serve = ("serve", "agent.py", "--registry", str(cards))
        agent = stack.enter_context(program(*serve, cwd=tmp_path, environment=home("agent")))
        agent.wait_for("published")
        hubs = [start(0), start(1)]
        for port in ports:
            assert execute(f"http://127.0.0.1:{port}", "work", {"seconds": 0})["result"] == "done"
        urls = [stack.enter_context(balancer(kind, tmp_path, reserve_port(), ports)) for kind in BALANCERS]
        time.sleep(1.2)  # HAProxy checks both twice
        callers = Callers()
        try:
            for url in urls:
                for number in range(CLIENTS):
                    callers.start(url, 0.02 * number)
            for number in range(len(hubs)):
                for url in (*urls, *urls):
                    callers.start(url, LONG_S, repeat=False)
                callers.wait_for(20)
                assert hubs[number].end() == 0
                hubs[number] = start(number)
                time.sleep(1.2)
            callers.wait_for(20)
        finally:
            callers.end()
        assert callers.failures == []
        assert callers.calls > 200
