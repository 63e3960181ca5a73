"""Programs of a mesh in a folder of its own, and a visitor that reads pages and calls skills there."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

from retinue.storage.state import State

START_S = 120.0
ROOT = Path(__file__).resolve().parents[1]


class Visitor:
    """Reads pages and calls skills with the token of the mesh."""

    def __init__(self, url: str, token: str) -> None:
        place = urlsplit(url)
        self._connection = http.client.HTTPConnection(str(place.hostname), place.port or 80, timeout=300)
        self._headers = {"authorization": f"Bearer {token}", "accept": "text/html"}

    def read(self, path: str) -> bytes:
        status, body = self.ask("GET", path)
        if status != 200:
            raise RuntimeError(f"{path} answers {status}")
        return body

    def call(self, skill: str, params: dict[str, object], times: int = 1) -> object:
        reply: dict[str, object] = {}
        for _ in range(times):
            reply = self.try_call(skill, params)
        if "result" not in reply:
            raise RuntimeError(f"{skill}: {reply}")
        return reply["result"]

    def try_call(self, skill: str, params: dict[str, object]) -> dict[str, object]:
        """The whole answer to a call, which may be an error."""
        body = json.dumps({"jsonrpc": "2.0", "method": skill, "params": params, "id": 1})
        reply: dict[str, object] = json.loads(self.ask("POST", "/execute", body)[1])
        return reply

    def find_run(self) -> str:
        listed = self.call("list_runs", {"workflow": "long"})
        assert isinstance(listed, dict)
        return quote(str(listed["runs"][0]["run"]), safe="")

    def await_agent(self, name: str) -> None:
        until = time.monotonic() + START_S
        while self.ask("GET", f"/agents/{name}/agent-card")[0] != 200:
            if time.monotonic() > until:
                raise RuntimeError(f"{name} is not listed")
            time.sleep(0.2)

    def ask(self, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        """The status and body of a response."""
        headers = self._headers | ({} if body is None else {"content-type": "application/json"})
        self._connection.request(method, path, body, headers)
        reply = self._connection.getresponse()
        return reply.status, reply.read()


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RETINUE_")}
    # the modules of the benchmarks, wherever the program starts
    return {**kept, "RETINUE_HOME": str(folder / "state"), "PYTHONPATH": str(ROOT)}


@contextmanager
def program(folder: Path, *arguments: str, module: str = "retinue") -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{arguments[0]}.log").open("wb") as log:
        command = [sys.executable, "-m", module, *arguments]
        process = subprocess.Popen(command, cwd=folder, env=environment(folder), stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


def await_hub(state: State) -> str:
    until = time.monotonic() + START_S
    while (hub := state.read_hub()) is None or not hub.is_ready:
        if time.monotonic() > until:
            raise RuntimeError("the hub does not start")
        time.sleep(0.1)
    return hub.url
