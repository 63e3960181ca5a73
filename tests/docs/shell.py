"""A terminal into which the commands of the pages are typed, as they stand there."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import pairwise, takewhile
from pathlib import Path

import urllib3

from tests.processes.running import Program, program, run_apart
from tests.services import get_program

READY = {
    "serve": "published",
    "hub": " exposed to MCP clients",
    "run": "-agent",  # the line of the first step that has ended
    "resume": "answer:",
    "worker": "worker on",
    "koi demo": "Ctrl-C ends the demo",
    "koi agent": ", tools: ",
    "record-team": "recording for",
}
AGENT, HUB, REGISTRY = (f"http://127.0.0.1:{port}" for port in (8001, 9000, 5000))
KOI = tuple(f"http://127.0.0.1:{port}" for port in (9000, 8101, 8102))
FEW_S = 240
_ASSIGNMENT = re.compile(r"[A-Z_]+=")


class Shell:
    """Types commands as the pages have them; one that ends in ``&`` runs until the end."""

    def __init__(self, running: ExitStack) -> None:
        self._running = running
        self._started: list[tuple[str, Program]] = []
        self.addresses: dict[str, str] = {}
        """Host and port on the page → the real ones."""
        self.said = ""
        """What the last command wrote to standard error."""

    def type(self, command: str, *, status: int = 0) -> str:
        """Run one command to its end, or until it is ready; gives its standard output.

        ``status`` is the exit status that it must have.
        """
        background = command.endswith(" &")
        words = shlex.split(self.to_real(command.removesuffix(" &")))
        given = dict(word.split("=", 1) for word in takewhile(_ASSIGNMENT.match, words))
        name, *arguments = words[len(given) :]
        if background:
            assert name == "retinue", command
            return self.start(*arguments, environment=given).output
        assert not given, command
        if name == "kill":
            return self.kill(command)
        if name == "curl":
            return curl(arguments)
        if name == "retinue":
            done = run_apart(*arguments, cwd=Path.cwd(), limit_s=FEW_S)
        else:
            found = sys.executable if name == "python" else get_program(name)
            done = subprocess.run([found, *arguments], capture_output=True, text=True, timeout=FEW_S)
        assert done.returncode == status, f"$ {command}\n{done.stdout}{done.stderr}"
        self.said = done.stderr
        return done.stdout

    def start(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Program:
        """A command that goes on; its address takes the place of the page's."""
        started = self._running.enter_context(program(*arguments, cwd=Path.cwd(), environment=environment))
        started.wait_for(READY.get(" ".join(arguments[:2])) or READY[arguments[0]])
        self._started.append((" ".join(("retinue", *arguments)), started))
        if arguments[0] == "serve":
            self.map_address(AGENT, started.url_in(" at http"))
        elif arguments[0] == "hub":
            self.map_address(HUB, started.url_in("hub at"))
        elif arguments[:2] == ("koi", "demo"):
            for shown, line in zip(
                KOI, ("coordinator at", "helpful-agent at", "creative-agent at"), strict=True
            ):
                self.map_address(shown, started.url_in(line))
        return started

    def list_started(self, text: str) -> list[Program]:
        """What runs of what was started here, by a part of its command."""
        meant = [
            started
            for command, started in self._started
            if text in command and started.process.poll() is None
        ]
        assert meant, f"nothing here is {text!r}"
        return meant

    def finish(self, text: str) -> None:
        """Wait for the end of what was started here, by a part of its command."""
        for command, started in self._started:
            if text in command:
                assert started.wait() == 0, started.output

    def kill(self, command: str) -> str:
        """What ``kill -9 $(COMMAND)`` does, to a program that was started here, and to no other."""
        asked = re.fullmatch(r"kill -9 \$\((.+)\)", command)
        assert asked, command
        pid = int(self.type(asked[1]))
        meant = next(started for _, started in self._started if started.process.pid == pid)
        meant.send(signal.SIGKILL)
        meant.wait()
        return ""

    def map_address(self, shown: str, real: str) -> None:
        """From now on the url on the page means another."""
        self.addresses[shown.removeprefix("http://")] = real.removeprefix("http://")

    def to_real(self, text: str) -> str:
        """What a page says, with the addresses that things really got."""
        for shown, real in self.addresses.items():
            text = text.replace(shown, real)
        return text

    def to_shown(self, text: str) -> str:
        """What a program said, with the addresses of the page."""
        for shown, real in self.addresses.items():
            text = text.replace(real, shown)
        return text


def curl(arguments: list[str]) -> str:
    """The request, by curl where there is one, else the same one without it."""
    if found := shutil.which("curl"):
        return subprocess.run(
            [found, *arguments], capture_output=True, text=True, timeout=FEW_S, check=True
        ).stdout
    options = list(pairwise(arguments))
    headers = dict(value.split(": ", 1) for option, value in options if option == "-H")
    body = next((value for option, value in options if option == "-d"), None)
    url = next(argument for argument in arguments if argument.startswith("http"))
    with urllib3.PoolManager() as pool:
        return pool.request("POST" if body else "GET", url, body=body, headers=headers).data.decode()
