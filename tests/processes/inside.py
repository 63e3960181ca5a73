"""Retinue's long-running commands inside the process of a test, for tests of what they compose.

`inside` stands for `tests.processes.running.program` where a test kills nothing and looks at no process: a
hub starts in a tenth of the time that an interpreter needs for its imports. The command reads its arguments
and settings as always; its main coroutine then runs in a thread of its own, as in a process of its own.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, chdir, contextmanager
from contextvars import ContextVar
from io import TextIOBase
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import uvloop
from click.testing import CliRunner

from retinue.cli import session
from retinue.cli.program import program
from retinue.runtime import serving
from retinue.runtime.serving import Stop
from tests.processes.running import without_models

WAIT_S = 90.0
_URL = re.compile(r"http://[0-9.]+:\d+")

Main = Callable[[], Coroutine[Any, Any, int]]
_current: ContextVar[InsideProgram | None] = ContextVar("_current", default=None)
"""The command whose thread or task this is: it stops with its own signals and prints its own log lines."""


class InsideProgram:
    """One ``retinue hub``, ``serve`` or ``worker`` in a thread, and what it has printed."""

    def __init__(self, *arguments: str, cwd: Path, environment: Mapping[str, str] | None = None) -> None:
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._stop: Stop | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._result: int | BaseException | None = None
        self._cwd = cwd
        with patch.dict(os.environ, {**without_models(arguments), **(environment or {})}):
            main = _read_command(arguments, cwd)
        # the command hands ``click.echo`` to its coroutine; it would print into the output of others
        with patch.object(click, "echo", self.print):
            running = main()
        self._thread = threading.Thread(target=self._run, args=[running], name=f"retinue {arguments[0]}")
        self._thread.start()

    def _run(self, running: Coroutine[Any, Any, int]) -> None:
        async def entry() -> int:
            self._loop = asyncio.get_running_loop()
            return await running

        _current.set(self)
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                self._result = runner.run(entry())
        except BaseException as error:  # noqa: BLE001 - raised again where the test waits
            self._result = error
        finally:
            with self._news:
                self._news.notify_all()

    def stop_with(self, stop: Stop) -> None:
        """Let ``stop`` hear what `end` says."""
        self._stop = stop

    def print(self, text: str) -> None:
        """Add the lines of a text to the output."""
        with self._news:
            self.lines += text.splitlines()
            self._news.notify_all()

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, text: str) -> str:
        """The first line with ``text``; fails with everything that was printed when none comes."""

        def find_line() -> str | None:
            return next((line for line in self.lines if text in line), None)

        with self._news:
            self._news.wait_for(lambda: find_line() is not None or self._result is not None, WAIT_S)
            line = find_line()
        assert line is not None, f"no {text!r} in:\n{self.output}\n{self._result!r}"
        return line

    def url_in(self, text: str) -> str:
        """The URL in the first line with ``text``."""
        match = _URL.search(self.wait_for(text))
        assert match is not None, self.output
        return match.group()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask the command to stop, as this signal would; gives its exit code. Nothing here can be killed."""
        assert number in (signal.SIGTERM, signal.SIGINT), number
        if self._thread.is_alive() and self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.ask, number.name)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), f"it does not end:\n{self.output}"
        if isinstance(self._result, BaseException):
            raise self._result
        assert self._result is not None
        return self._result

    def close(self) -> None:
        """End it, and take the modules and the import path of its agents away again."""
        self.end()
        folder = str(self._cwd)
        for name, module in sys.modules.copy().items():  # other threads import meanwhile
            if (getattr(module, "__file__", None) or "").startswith(folder):
                del sys.modules[name]
        sys.path[:] = [path for path in sys.path if not path.startswith(folder)]


class _LogLines(TextIOBase):
    """The standard error of each command that runs inside, and that of the test for everything else."""

    def write(self, text: str) -> int:
        running = _current.get()
        if running is None:
            return sys.__stderr__.write(text) if sys.__stderr__ is not None else 0
        running.print(text)
        return len(text)


def _on_signals(stop: Stop) -> None:
    running = _current.get()
    if running is not None:  # else a command of the test, which is refused before anything could stop it
        running.stop_with(stop)


def _read_command(arguments: tuple[str, ...], cwd: Path) -> Main:
    """Read the command line and the settings; gives the main coroutine of the command."""
    mains: list[Main] = []

    def keep_main(main: Main, **options: object) -> int:
        mains.append(main)
        return 0

    with chdir(cwd), patch.object(serving, "run_loop", keep_main):
        result = CliRunner().invoke(program, arguments, prog_name="retinue")
    assert result.exit_code == 0, result.output
    return mains[0]


@contextmanager
def inside(
    *arguments: str, cwd: Path, environment: Mapping[str, str] | None = None
) -> Iterator[InsideProgram]:
    """A ``retinue`` command that runs in this process while inside."""
    with ExitStack() as stack:
        with patch.object(sys, "stderr", _LogLines()):
            session.configure_logs("info")
        # commands that run meanwhile must not send the log lines of this one elsewhere
        stack.enter_context(patch.object(session, "configure_logs", lambda level="info": None))
        stack.enter_context(patch.object(Stop, "on_signals", _on_signals))
        running = InsideProgram(*arguments, cwd=cwd, environment=environment)
        stack.callback(running.close)
        yield running
