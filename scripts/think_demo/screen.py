"""What the demo prints: its own lines, and ``retinue`` commands with their output."""

from __future__ import annotations

import codecs
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

_INDENT = "    "
_WIDTH = 150
_COMMAND_S = 60.0


class CommandFailedError(Exception):
    """A command failed; the message has its output."""


class Screen:
    """The terminal; commands run in ``folder`` with ``environment``."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self._lock = threading.Lock()
        self._is_inside_line = False

    def say(self, text: str = "") -> None:
        """Print a line of the demo; it ends a line that a command left open."""
        with self._lock:
            self._write(f"\n{text}\n" if self._is_inside_line else f"{text}\n")
            self._is_inside_line = False

    def pass_on(self, text: str) -> None:
        """Print a piece of a command's output."""
        with self._lock:
            for line in text.splitlines(keepends=True):
                self._write(line if self._is_inside_line else f"{_INDENT}{line}")
                self._is_inside_line = not line.endswith("\n")

    def end_line(self) -> None:
        """End a line that a command left open."""
        if self._is_inside_line:
            self.say()

    @staticmethod
    def _write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command that is not shown; its output is piped."""
        return subprocess.Popen(
            [sys.executable, "-m", "retinue", *arguments],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, *arguments: str, hides: str | None = None) -> str:
        """Show a command and its output without the lines that hold ``hides``; returns all of its output.

        Raises CommandFailedError.
        """
        self.show_command(*arguments)
        output = self.read(*arguments)
        for line in output.splitlines():
            if hides is None or hides not in line:
                self.pass_on(f"{line if len(line) <= _WIDTH else line[: _WIDTH - 1] + '…'}\n")
        return output

    def read(self, *arguments: str) -> str:
        """The output of a command that is not shown; raises CommandFailedError."""
        process = self.start(*arguments)
        try:
            output = process.communicate(timeout=_COMMAND_S)[0].decode("utf-8", "replace")
        finally:
            process.kill()
        if process.returncode:
            raise CommandFailedError(f"retinue {arguments[0]} failed: {output}")
        return output

    def show_command(self, *arguments: str) -> None:
        self.say()
        self.say(f"$ {shlex.join(('retinue', *arguments))}")


class LiveCommand:
    """A command whose output is shown while it runs."""

    def __init__(self, screen: Screen, *arguments: str) -> None:
        self._screen = screen
        screen.show_command(*arguments)
        self._process = screen.start(*arguments)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while piece := os.read(self._process.stdout.fileno(), 65_536):
            self._screen.pass_on(decoder.decode(piece))

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self, limit_s: float) -> int:
        """The exit status; raises subprocess.TimeoutExpired."""
        status = self._process.wait(limit_s)
        self._reader.join(limit_s)
        self._screen.end_line()
        return status

    def close(self) -> None:
        """End the command if it still runs."""
        if self.is_running:
            self._process.kill()
        self._process.wait()
        self._reader.join(1.0)
        if self._process.stdout is not None:
            self._process.stdout.close()
