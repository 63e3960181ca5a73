"""The mesh of the demo: a hub with three agents, two MCP servers, a model, and the agent in Markdown."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import retinue
from retinue.runtime.serving import SUPERVISOR_FD
from scripts.npm_packages import NODE

SOURCE = Path(__file__).parent
AGENT = "test-engineer"
SCRIPTED = "thinker"
TOOLS = frozenset({"plan-agent", "build-agent", "test-agent", "files", "memory"})
_READY_S = 120.0
_POLL_S = 0.2


class NotReadyError(Exception):
    """The mesh did not come to where the demo waits for it."""


class Mesh:
    """A hub in ``home``, as a process with the processes of its agents.

    ``packages`` has the MCP servers. ``model`` is a model agent; without it a scripted one is served.
    """

    def __init__(self, home: Path, packages: Path, model: str | None) -> None:
        self.home = home
        self.work = home / "work"
        self.kept = self.work / "kept"
        self.kept.mkdir(parents=True)
        self._notes = self.work / "memory.jsonl"
        self.is_scripted = model is None
        self._model = model or SCRIPTED
        self._hub: subprocess.Popen[bytes] | None = None
        self._hubs = 0
        self._line: socket.socket | None = None
        for name in ("model.py", "prices.py"):
            shutil.copy(SOURCE / name, self.work)
        text = (SOURCE / f"{AGENT}.md").read_text("utf-8")
        self.agent_file.write_text(text.replace(f"model: {SCRIPTED}", f"model: {self._model}"), "utf-8")
        self._write_settings(packages)

    @property
    def agent_file(self) -> Path:
        return self.work / f"{AGENT}.md"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of all commands: a state folder and a home of their own, without other models."""
        return {
            **os.environ,
            "RETINUE_HOME": str(self.home / "state"),
            "RETINUE_HUB": "",
            "RETINUE_HUB__MODELS": json.dumps([] if self.is_scripted else [self._model]),
            "NO_COLOR": "1",
        }

    def _write_settings(self, packages: Path) -> None:
        def server(name: str, *arguments: str) -> str:
            program = packages / "node_modules" / "@modelcontextprotocol" / f"server-{name}/dist/index.js"
            # a list of strings in JSON is one in TOML, too
            return (
                f"command = {json.dumps(str(NODE / 'node'))}\nargs = {json.dumps([str(program), *arguments])}"
            )

        targets = [f"{AGENT}.md", *(["model.py"] if self.is_scripted else [])]
        tables = [f'[[agents]]\ntarget = "{target}"' for target in targets]
        tables += [f"[imports.files]\n{server('filesystem', str(self.kept))}"]
        notes = f"env = {{MEMORY_FILE_PATH = {json.dumps(str(self._notes))}}}"
        tables += [f"[imports.memory]\n{server('memory')}\n{notes}"]
        (self.work / "retinue.toml").write_text("\n\n".join(tables) + "\n", "utf-8")

    def start(self) -> None:
        """Start the hub, and wait until all its agents are available."""
        self._hubs += 1
        # the hub ends when this end of the pair is closed, so it ends with the demo, even a killed one
        self._line, theirs = socket.socketpair()
        with theirs, (self.home / f"hub-{self._hubs}.log").open("wb") as log:
            self._hub = subprocess.Popen(
                [sys.executable, "-m", "retinue", "hub", "--port", "9000", "--port-may-move"],
                cwd=self.work,
                env={**self.environment, SUPERVISOR_FD: str(theirs.fileno())},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        needed = {*TOOLS, AGENT, self._model}
        wait_for(lambda: needed <= self._list_available(), f"the agents {', '.join(sorted(needed))} run")

    def kill(self) -> int:
        """End the hub as ``kill -9`` does; returns its process id."""
        assert self._hub is not None
        self._hub.kill()
        self._hub.wait()
        return self._hub.pid

    def stop(self) -> None:
        """End the hub and its agents."""
        if self._hub is not None and self._hub.poll() is None:
            self._hub.send_signal(signal.SIGTERM)
            try:
                self._hub.wait(20.0)
            except subprocess.TimeoutExpired:
                self.kill()

    def read_log(self) -> str:
        """What the hubs printed, the latest last."""
        return "".join(self._read_logs())

    def list_calls(self) -> list[list[Mapping[str, Any]]]:
        """The calls that each of the hubs has logged."""
        return [
            [json.loads(line) for line in text.splitlines() if '"event":"call"' in line]
            for text in self._read_logs()
        ]

    def _read_logs(self) -> list[str]:
        return [path.read_text("utf-8", "replace") for path in sorted(self.home.glob("hub-*.log"))]

    def read_notes(self) -> str:
        """The knowledge graph, as its server stores it."""
        return self._notes.read_text("utf-8") if self._notes.exists() else ""

    def read_requests(self) -> str:
        """The log of the scripted model, a line for each request."""
        return (self.work / "requests.jsonl").read_text("utf-8")

    def _list_available(self) -> set[str]:
        if self._hub is None or self._hub.poll() is not None:
            raise NotReadyError("the hub ended")
        try:
            reply = self.call("list_agents", limit=100, detailed=True)
        except retinue.RetinueError:  # it does not listen yet
            return set()
        return {row["name"] for row in reply["agents"] if row["status"] == "available"}

    def call(self, skill: str, **arguments: Any) -> Any:
        """The result of a skill of the hub."""
        os.environ["RETINUE_HOME"] = str(self.home / "state")
        with retinue.connect_sync(timeout_s=10.0, retries=0) as mesh:
            return mesh.call(skill, arguments)

    def list_steps(self, run: str) -> dict[str, Mapping[str, Any]]:
        """The steps of a run by their paths; none before it begins."""
        try:
            return dict(_flatten(self.call("show_run", run=run)["steps"]))
        except retinue.RetinueError:
            return {}

    def has_step(self, run: str, status: str, path: str | None = None) -> bool:
        """Whether a step of a run has this status: the one at ``path``, or any."""
        steps = self.list_steps(run)
        return any(step["status"] == status for at, step in steps.items() if path in (None, at))


def _flatten(steps: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for step in steps:
        yield str(step["step"]), step
        yield from _flatten(step.get("steps", ()))


def wait_for(condition: Callable[[], bool], what: str, limit_s: float = _READY_S) -> None:
    """Return when the condition holds; raises NotReadyError after ``limit_s`` seconds."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise NotReadyError(f"waited {limit_s:.0f} s in vain until {what}")
        time.sleep(_POLL_S)
