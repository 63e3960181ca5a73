"""Supervises agent processes: starts them, waits until they are ready, restarts with back-off, stops all.

Each child holds one end of a socket pair and reports through it that it is ready. When the supervisor dies,
even by SIGKILL, the socket closes and the child stops, so no orphan remains. Each child has its own process
group: Ctrl-C reaches only the supervisor, which then stops the children.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import orjson
import structlog

from retinue.core.durations import render_duration
from retinue.core.errors import ChildFailedError
from retinue.core.text import hide_tokens
from retinue.runtime.serving import LISTENER_FD, SUPERVISOR_FD

_log = structlog.get_logger("retinue.children")

_KEPT_LINES = 20
_LINE_BYTES = 64 * 1024
READY_WITHIN_S = 60.0
"""A child that is not ready by then is started again, and would need as long again."""

_FIRST_BACK_OFF_S = 0.5
_LAST_BACK_OFF_S = 30.0


class StartedProcess(Protocol):
    """A process that was started, as `asyncio.subprocess.Process` has it."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    async def wait(self) -> int: ...

    def send_signal(self, number: int, /) -> None: ...


StartProcess = Callable[[Sequence[str], Mapping[str, str], Sequence[int]], Awaitable[StartedProcess | None]]
"""Starts the ``retinue`` command with arguments, environment and open descriptors; None if it cannot now."""


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A child to run: arguments of the ``retinue`` command, and its whole environment.

    ``listener`` is a listening socket that the child takes over by `serving.take_listener`; ``descriptors``
    are others that it inherits. With ``shares_output`` it prints where this process does.
    """

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    listener: socket.socket | None = None
    ready_within_s: float = READY_WITHIN_S
    stop_within_s: float = field(default=6.0, compare=False)
    program: str | None = None
    """The Python that runs it; None = that of this process."""
    folder: Path | None = None
    """Its working directory; None = that of this process."""
    descriptors: tuple[int, ...] = ()
    shares_output: bool = False
    first_back_off_s: float = _FIRST_BACK_OFF_S
    """Seconds until it is started again after it has run for ``lasting_s``; longer if it did not last."""
    lasting_s: float = _LAST_BACK_OFF_S
    start: StartProcess | None = field(default=None, compare=False)
    """Starts it in place of a new program, where that is possible; its output is shared then."""
    overlaps: bool = field(default=False, compare=False)
    """Whether a child with another environment answers before the one of the same name is stopped."""
    facts: Mapping[str, str] = field(default_factory=dict, compare=False)
    """What its report says beside its own facts."""


Ready = Mapping[str, Any]
"""The report of a ready child, such as its name and URL."""

Probe = Callable[[Ready], Awaitable[bool]]
"""Whether a child that reports to be ready answers."""

OnChange = Callable[[str, Ready | ChildFailedError | None], None]
"""Called with the child's name and its report when it is ready, None when it ended, or its failed start."""


OnOutput = Callable[[str, str], None]
"""Called with the child's name and each line that it prints."""


def report_ready(descriptor: int | None, facts: Ready) -> None:
    """Report to the supervisor that this child answers; ``facts`` are JSON, such as its URL."""
    if descriptor is not None:
        with contextlib.suppress(OSError):
            os.write(descriptor, orjson.dumps(dict(facts)) + b"\n")


class ChildProcess:
    """One supervised process."""

    def __init__(self, spec: ChildSpec, probe: Probe, on_output: OnOutput = lambda name, line: None) -> None:
        self.spec = spec
        self.restarts = 0
        self._is_ready = False
        self._probe = probe
        self._on_output = on_output
        self._process: StartedProcess | None = None
        self._line: socket.socket | None = None
        self._tail: deque[str] = deque(maxlen=_KEPT_LINES)
        self._readers: list[asyncio.Task[None]] = []

    @property
    def is_ready(self) -> bool:
        """Whether it runs and has answered."""
        return self._is_ready and self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> Ready:
        """Start it and wait until it answers; raises ChildFailedError with its last line of output."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        passed = {SUPERVISOR_FD: theirs.fileno()}
        if self.spec.listener is not None:
            passed[LISTENER_FD] = self.spec.listener.fileno()
        descriptors = {name: str(number) for name, number in passed.items()}
        try:
            environment, kept = (
                {**self.spec.environment, **descriptors},
                (*passed.values(), *self.spec.descriptors),
            )
            if self.spec.start is not None:
                self._process = await self.spec.start(self.spec.arguments, environment, kept)
            if self._process is None:
                self._process = await self._start_program(environment, kept)
        except OSError as error:
            ours.close()
            raise ChildFailedError(self.spec.name, f"it cannot be started: {error.strerror}") from error
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._line = ours
        try:
            async with asyncio.timeout(self.spec.ready_within_s):
                ready = await self._become_ready(ours)
                self._is_ready = True
                return {**ready, **self.spec.facts}
        except TimeoutError:
            await self.stop()
            problem = f"it was not ready within {render_duration(self.spec.ready_within_s)}"
            raise ChildFailedError(self.spec.name, problem, self._last_line()) from None
        except BaseException:
            await self.stop()
            raise

    async def _start_program(
        self, environment: Mapping[str, str], descriptors: Sequence[int]
    ) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            self.spec.program or sys.executable,
            "-m",
            "retinue",
            *self.spec.arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=None if self.spec.shares_output else asyncio.subprocess.PIPE,
            stderr=None if self.spec.shares_output else asyncio.subprocess.STDOUT,
            env=environment,
            pass_fds=descriptors,
            start_new_session=True,
            cwd=self.spec.folder,
        )
        if not self.spec.shares_output:
            self._readers = [asyncio.create_task(self._keep_output(process))]
        return process

    def send_signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def wait(self) -> int:
        """Wait until it ends; returns the exit code."""
        assert self._process is not None, "started"
        return await self._process.wait()

    async def stop(self) -> None:
        """Terminate it, then kill its process group."""
        process, line = self._process, self._line
        self._is_ready = False
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(self.spec.stop_within_s):
                    await process.wait()
            except TimeoutError:
                _log.warning("killed", child=self.spec.name, after_s=self.spec.stop_within_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if line is not None:
            line.close()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        self._process = self._line = None

    async def _become_ready(self, line: socket.socket) -> Ready:
        loop = asyncio.get_running_loop()
        received = b""
        while not received.endswith(b"\n"):
            try:
                chunk = await loop.sock_recv(line, 4096)
            except ConnectionError:
                chunk = b""
            if not chunk:
                code = await self.wait()
                await asyncio.gather(*self._readers, return_exceptions=True)
                raise ChildFailedError(self.spec.name, f"it ended with code {code}", self._last_line())
            received += chunk
        ready: Ready = orjson.loads(received)
        while not await self._probe(ready):
            await asyncio.sleep(0.05)
        return ready

    async def _keep_output(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None, "piped"
        async for line in _read_lines(process.stdout):
            text = hide_tokens(line.decode("utf-8", "replace").rstrip())
            self._tail.append(text)
            self._on_output(self.spec.name, text)
            _log.debug("output", child=self.spec.name, line=text)

    def _last_line(self) -> str:
        return self._tail[-1] if self._tail else ""


async def _read_lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The lines of a child's output; one over `_LINE_BYTES` comes in pieces, so that no child waits."""
    rest = b""
    while chunk := await stream.read(_LINE_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
        if len(rest) >= _LINE_BYTES:
            yield rest
            rest = b""
    if rest:
        yield rest


class Supervisor:
    """Keeps a set of children running; ``on_change`` is called at each start, end and failed start.

    A child that ended or failed to start is started again. ``on_output`` gets what the children print.
    """

    def __init__(
        self,
        probe: Probe,
        on_change: OnChange = lambda name, news: None,
        on_output: OnOutput = lambda name, line: None,
    ) -> None:
        self._probe = probe
        self._on_change = on_change
        self._on_output = on_output
        self._children: list[ChildProcess] = []
        self._keepers: dict[ChildProcess, asyncio.Task[None]] = {}
        self._replacing: asyncio.Task[None] | None = None
        self._newest: Sequence[ChildSpec] = ()
        self._changing = asyncio.Lock()

    async def start(self, specs: Sequence[ChildSpec], *, insist: bool = False) -> list[Ready]:
        """Start all concurrently and wait until each is ready or failed; returns reports of the ready ones.

        A failed child is retried in the background. With ``insist`` the first failure stops all children
        and is raised as ChildFailedError.
        """
        async with self._changing:
            return await self._start(specs, insist=insist)

    def replace_soon(self, specs: Sequence[ChildSpec]) -> None:
        """Stop the children that are not in ``specs`` and start the new ones; the others run on.

        Children that overlap are replaced one after the other. Where the new one does not start, the old one
        runs on. Former specs that wait for a replacement to end are skipped, so a child that comes back runs
        on.
        """
        self._newest = specs
        self._replacing = asyncio.create_task(self._replace(self._replacing, specs))

    async def _replace(self, previous: asyncio.Task[None] | None, specs: Sequence[ChildSpec]) -> None:
        if previous is not None:
            await asyncio.gather(previous, return_exceptions=True)
        if specs is not self._newest:
            return
        async with self._changing:
            kept = await self._renew(specs)
            leaving = [c for c in self._children if c.spec not in specs and c.spec.name not in kept]
            known = [child.spec for child in self._children]
            await asyncio.gather(*(self._end(child) for child in leaving))
            self._children = [child for child in self._children if child not in leaving]
            starting = [spec for spec in specs if spec not in known and spec.name not in kept]
            await self._start(starting, insist=False)

    async def _renew(self, specs: Sequence[ChildSpec]) -> set[str]:
        """Start the successors of children that overlap; returns the names of the children that run on.

        The first that fails, or newer specs, leave all further ones as they are.
        """
        known = [child.spec for child in self._children]
        kept: set[str] = set()
        for spec in specs:
            former = next((c for c in self._children if c.spec.name == spec.name and c.is_ready), None)
            if not spec.overlaps or spec in known or former is None:
                continue
            if kept or specs is not self._newest or not await self._succeed(former, spec):
                kept.add(spec.name)
        return kept

    async def _succeed(self, former: ChildProcess, spec: ChildSpec) -> bool:
        """Start a child and stop the one before it; where the new one does not start, that runs on."""
        child = ChildProcess(spec, self._probe, self._on_output)
        try:
            ready = await child.start()
        except ChildFailedError as error:
            self._on_change(spec.name, error)
            return False
        self._children[self._children.index(former)] = child
        self._keepers[child] = asyncio.create_task(self._keep(child, runs=True))
        self._on_change(spec.name, ready)
        await self._end(former)
        return True

    async def _end(self, child: ChildProcess) -> None:
        """Stop one child, and do not start it again."""
        keeper = self._keepers.pop(child, None)
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        await child.stop()

    async def _start(self, specs: Sequence[ChildSpec], *, insist: bool) -> list[Ready]:
        started = [ChildProcess(spec, self._probe, self._on_output) for spec in specs]
        self._children.extend(started)
        outcomes = await asyncio.gather(*(child.start() for child in started), return_exceptions=True)
        ready: list[Ready] = []
        for child, outcome in zip(started, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                if insist or not isinstance(outcome, ChildFailedError):
                    await self.stop()
                    raise outcome
                self._on_change(child.spec.name, outcome)
            else:
                ready.append(outcome)
                self._on_change(child.spec.name, outcome)
            runs = not isinstance(outcome, BaseException)
            self._keepers[child] = asyncio.create_task(self._keep(child, runs))
        return ready

    @property
    def children(self) -> Sequence[ChildProcess]:
        """All children, running or not."""
        return tuple(self._children)

    async def stop(self) -> None:
        """Stop all children concurrently and wait until they ended."""
        replacing = self._replacing
        if replacing is not None and replacing is not asyncio.current_task():
            replacing.cancel()
            await asyncio.gather(replacing, return_exceptions=True)
        await asyncio.gather(*(self._end(child) for child in self._children))

    async def _keep(self, child: ChildProcess, runs: bool) -> None:
        """Restart the child whenever it ends, with a longer delay each time it does not last."""
        loop = asyncio.get_running_loop()
        back_off_s = first_s = child.spec.first_back_off_s
        while True:
            if runs:
                started_at = loop.time()
                code = await child.wait()
                await child.stop()
                self._on_change(child.spec.name, None)
                if loop.time() - started_at > child.spec.lasting_s:
                    back_off_s = first_s
                _log.warning("ended", child=child.spec.name, code=code, restart_in_s=back_off_s)
            await asyncio.sleep(back_off_s)
            back_off_s = min(max(back_off_s * 2, _FIRST_BACK_OFF_S), _LAST_BACK_OFF_S)
            try:
                ready = await child.start()
            except ChildFailedError as error:
                runs = False
                self._on_change(child.spec.name, error)
                continue
            runs = True
            child.restarts += 1
            self._on_change(child.spec.name, ready)
