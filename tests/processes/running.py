"""Retinue's programs as child processes of a test: started, waited for, killed, and always cleaned up."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import urllib3

from tests.processes.fork_server import ForkedProcess

WAIT_S = 90.0
"""A limit of failures, not a promise: starts of programs take long on a machine that others use, too."""
COLD_STARTS = "COLD_STARTS" in os.environ
"""Whether every program is started by its command line."""
READ_AT_START = ("PYTHON", "LD_", "FAKETIME", "DONT_FAKE", "LC_", "LANG", "OTEL_", "SSL_")
"""Beginnings of the names of variables that Python, the loader or a library reads before the program does."""
_URL = re.compile(r"http://[0-9.]+:\d+")
_http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(WAIT_S))


def without_models(arguments: Sequence[str]) -> dict[str, str]:
    """The variable with which a bare hub starts no model, whatever programs this machine has."""
    return {"RETINUE_HUB__MODELS": "[]"} if "--bare" in arguments else {}


class Program:
    """One running ``retinue`` command and what it has printed.

    ``script`` is another program: installed here, by its name, or elsewhere, by its path. ``cold`` starts
    Python anew, for tests of what a process loads, how much memory it needs or what its command line says.
    """

    def __init__(
        self,
        *arguments: str,
        cwd: Path,
        environment: Mapping[str, str] | None = None,
        script: str | Path | None = None,
        cold: bool = False,
    ) -> None:
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        variables = {**os.environ, **without_models(arguments), **(environment or {})}
        self.process: ForkedProcess | subprocess.Popen[str]
        if script is None and not (cold or _starts_cold(environment or {})):
            self.process = ForkedProcess(arguments, cwd=str(cwd), environment=variables)
        else:
            self.process = subprocess.Popen(
                [*_start_of(script), *arguments],
                cwd=cwd,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip())
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, text: str) -> str:
        """The first line with ``text``; fails with everything that was printed when none comes."""

        def found() -> str | None:
            return next((line for line in self.lines if text in line), None)

        with self._news:
            self._news.wait_for(lambda: found() is not None or self._ended, WAIT_S)
            line = found()
        assert line is not None, f"no {text!r} in:\n{self.output}"
        return line

    def url_in(self, text: str) -> str:
        """The url in the first line with ``text``."""
        match = _URL.search(self.wait_for(text))
        assert match is not None, self.output
        return match.group()

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait; the exit code."""
        self.send(number)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(15)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        if self.process.stdout is not None:
            self.process.stdout.close()


def _starts_cold(environment: Mapping[str, str]) -> bool:
    """Whether a variable counts when Python starts or imports, not only when the program reads it."""
    return COLD_STARTS or any(name.startswith(READ_AT_START) for name in environment)


def _start_of(script: str | Path | None) -> list[str]:
    if script is None:
        return [sys.executable, "-m", "retinue"]
    return [str(Path(sys.executable).parent / script)]


@contextmanager
def program(
    *arguments: str,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
    script: str | Path | None = None,
    cold: bool = False,
) -> Iterator[Program]:
    """A ``retinue`` command, or another installed program, that runs while inside."""
    running = Program(*arguments, cwd=cwd, environment=environment, script=script, cold=cold)
    try:
        yield running
    finally:
        running.close()


def run_apart(
    *arguments: str, cwd: Path, environment: Mapping[str, str] | None = None, limit_s: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Run a ``retinue`` command to its end in a process of its own."""
    variables = {**os.environ, **(environment or {})}
    if not _starts_cold(environment or {}):
        process = ForkedProcess(arguments, cwd=str(cwd), environment=variables, has_errors=True)
        output, errors = process.communicate(limit_s)
        return subprocess.CompletedProcess(arguments, process.wait(), output, errors)
    return subprocess.run(
        [*_start_of(None), *arguments],
        cwd=cwd,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


def execute(url: str, method: str, params: Any = None, token: str | None = None) -> dict[str, Any]:
    """One JSON-RPC request; the whole reply."""
    headers = {"content-type": "application/json"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    body = orjson.dumps({"jsonrpc": "2.0", "method": method, "params": params or {}, "id": "test"})
    reply = _http.request("POST", f"{url}/execute", body=body, headers=headers)
    answer: dict[str, Any] = orjson.loads(reply.data)
    return answer


def get(url: str) -> tuple[int, Any]:
    """One GET; the status and the JSON."""
    reply = _http.request("GET", url)
    return reply.status, orjson.loads(reply.data)


def descendants(pid: int) -> set[int]:
    """Every process below ``pid``."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(fields[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def is_running(pid: int) -> bool:
    """Whether the process lives; a zombie that nobody reaped is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def is_free(port: int) -> bool:
    """Whether nothing listens at a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def wait_until(condition: Callable[[], bool], what: str, *, limit_s: float = WAIT_S) -> None:
    """Wait for something that sends no news, such as the end of a process that is no child of ours."""
    deadline = time.monotonic() + limit_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"timed out: {what}"
        pause.wait(0.02)


def write_agent(folder: Path, name: str, version: str, skill: str, answer: str) -> Path:
    """A one-skill agent in a file of its own."""
    file = folder / f"{name.replace('-', '_')}_{version.replace('.', '_')}.py"
    file.write_text(
        "from retinue import Agent\n\n"
        f"agent = Agent({name!r}, version={version!r})\n\n\n"
        f"@agent.skill({skill!r}, read_only=True)\n"
        "async def answer() -> str:\n"
        '    """Says who answers."""\n'
        f"    return {answer!r}\n"
    )
    return file
