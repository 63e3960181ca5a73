"""What the demo prints: its own lines, and ``retinue`` commands with their output."""

from __future__ import annotations

import shlex
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

_INDENT = "    "
_WIDTH = 150
_COMMAND_S = 120.0


class CommandFailedError(Exception):
    """A command failed; the message has its output."""


class Screen:
    """The terminal; commands run in ``folder`` with ``environment``."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self._lock = threading.Lock()

    def say(self, *lines: str) -> None:
        """Print lines of the demo."""
        with self._lock:
            print(*lines, sep="\n", flush=True)

    def show(self, *lines: str) -> None:
        """Print lines of a command or a file, indented and not too long."""
        self.say(
            *(f"{_INDENT}{line}" if len(line) <= _WIDTH else f"{_INDENT}{line[:_WIDTH]}…" for line in lines)
        )

    def run(self, *arguments: str, hides: str | None = None) -> str:
        """Run a command, and show it with its output but the lines that hold ``hides``; returns the output.

        Raises CommandFailedError.
        """
        self.say("", render_command(arguments))
        output = self.read(*arguments)
        self.show(*(line for line in output.splitlines() if hides is None or hides not in line))
        return output

    def read(self, *arguments: str) -> str:
        """The output of a command that is not shown; raises CommandFailedError."""
        process = self.start(*arguments)
        try:
            output = process.communicate(timeout=_COMMAND_S)[0]
        finally:
            process.kill()
        if process.returncode:
            raise CommandFailedError(f"retinue {arguments[0]} failed: {output}")
        return output

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command whose output is piped."""
        return subprocess.Popen(
            [sys.executable, "-m", "retinue", *arguments],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


class LiveCommand:
    """A command whose output is shown line by line while it runs."""

    def __init__(self, screen: Screen, *arguments: str) -> None:
        self._screen = screen
        screen.say("", render_command(arguments))
        self._process = screen.start(*arguments)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._screen.show(line.rstrip("\n"))

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self, limit_s: float) -> int:
        """The exit status; raises subprocess.TimeoutExpired."""
        status = self._process.wait(limit_s)
        self._reader.join(limit_s)
        return status

    def close(self) -> None:
        """End the command if it still runs."""
        if self.is_running:
            self._process.kill()
        self._process.wait()
        self._reader.join(5.0)


def render_command(arguments: tuple[str, ...]) -> str:
    """A command as it is typed."""
    return f"$ {shlex.join(('retinue', *arguments))}"
