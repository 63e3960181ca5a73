"""Runs one program under resource limits, asynchronously, and kills all its descendants at the end.

The program runs in its own process group under a small supervisor script (``keeper.py``), which sets the
resource limits. ``preexec_fn`` is not used because it runs Python code between fork and exec in a threaded
process. No shell is involved, and the environment contains only `clean_environment` and what the caller adds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from retinue.core.errors import ExecutionFailedError
from retinue.processes.bounds import BOUNDS, close_groups, remove_groups
from retinue.processes.descendants import list_descendants, send_signal, stop_descendants

LimitName = Literal["wall", "cpu", "memory", "processes", "file_size", "output"]

ALLOWING_VARIABLE = "RETINUE_UNBOUNDED_PROGRAMS"
"""With the value 1, programs of others run as root even if the number of their processes has no limit."""

_CHUNK_BYTES = 65536
_KEEPER_GRACE_S = 5.0
_KILL_PASSES = 200
_TASKS_PER_PROCESS = 16
"""Programs such as Node start a dozen threads."""


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """Limits of one program, in seconds, bytes and counts.

    ``cpu_s``, ``memory_bytes`` (address space), ``open_files`` and ``file_bytes`` (size of one file) apply to
    each process; ``memory_bytes`` (resident) and ``processes`` to all descendants together;
    ``output_bytes`` to stdout and stderr separately.

    ``tasks`` is a number of processes and threads that the kernel does not exceed (default: 16 a process),
    where something can bound it (`bounds`). As root that is not always so. A program with ``must_bind`` is
    then refused, unless ``RETINUE_UNBOUNDED_PROGRAMS`` allows it; before that it is tried under another user.
    """

    wall_s: float = 60.0
    cpu_s: int = 60
    memory_bytes: int = 2 * 1024**3
    processes: int = 32
    open_files: int = 256
    file_bytes: int = 64 * 1024**2
    output_bytes: int = 8 * 1024**2
    tasks: int | None = None
    must_bind: bool = False


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Result of a program; exactly one of ``exit_code`` and ``signal`` is set.

    ``limit`` names the limit that ended the program, None when it ended by itself. ``bound`` is the bound of
    its tasks, as `bounds` names them; "" for none.
    """

    exit_code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    duration_s: float
    limit: LimitName | None = None
    bound: str = ""

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and self.limit is None


def clean_environment(folder: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a confined program: search path, locale, ``folder`` as home, and ``extra``."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": "C.UTF-8",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        **(extra or {}),
    }


async def run_command(
    arguments: Sequence[str],
    *,
    folder: Path,
    limits: ProgramLimits | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    on_stdout: Callable[[bytes], Awaitable[None]] | None = None,
    bounds: Sequence[str] = BOUNDS,
) -> CommandResult:
    """Run ``arguments`` in ``folder`` and wait until the program ends.

    ``on_stdout`` receives the output while the program runs. ``environment`` is added to `clean_environment`.
    A program that cannot be started yields exit code 127 and the reason on stderr. On cancellation, every
    descendant is dead before CancelledError propagates. ``bounds`` are the bounds of tasks that may be used.
    Raises ExecutionFailedError where ``limits`` asks for one of them and none works for root.
    """
    limits = limits or ProgramLimits()
    started = time.monotonic()
    with resources.as_file(resources.files("retinue.processes") / "keeper.py") as keeper_script:
        read_end, write_end = os.pipe()
        try:
            keeper = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                str(keeper_script),
                _describe_limits(limits, write_end, bounds),
                "--",
                *arguments,
                cwd=folder,
                env=clean_environment(folder, environment),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(write_end,),
            )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        try:
            stdout, stderr, exceeded = await _communicate(keeper, stdin, limits, on_stdout)
        finally:
            await asyncio.shield(_end(keeper))
            report = _read_report(read_end)
    if report and report["bound"] == "refused":
        raise ExecutionFailedError(
            "as root, nothing on this machine limits the number of processes that a program may start",
            remedy="run this process as another user, or in a control group that is delegated to it; "
            f"{ALLOWING_VARIABLE}=1 runs programs without that limit",
        )
    return _to_result(report, stdout, stderr, exceeded, time.monotonic() - started)


def _describe_limits(limits: ProgramLimits, report: int, bounds: Sequence[str]) -> str:
    return json.dumps(
        {
            "parent": os.getpid(),
            "report": report,
            "cpu_s": limits.cpu_s,
            "memory_bytes": limits.memory_bytes,
            "processes": limits.processes,
            "tasks": limits.tasks or limits.processes * _TASKS_PER_PROCESS,
            "bounds": list(bounds),
            "must_bind": limits.must_bind,
            "may_refuse": os.environ.get(ALLOWING_VARIABLE) != "1",
            "open_files": limits.open_files,
            "file_bytes": limits.file_bytes,
        }
    )


async def _communicate(
    keeper: asyncio.subprocess.Process,
    stdin: bytes,
    limits: ProgramLimits,
    on_stdout: Callable[[bytes], Awaitable[None]] | None,
) -> tuple[bytes, bytes, LimitName | None]:
    """Write stdin and read output until the program ends or exceeds its wall time or output limit."""
    stdout, stderr = bytearray(), bytearray()
    exceeded: LimitName | None = None
    assert keeper.stdout is not None
    assert keeper.stderr is not None
    try:
        async with asyncio.timeout(limits.wall_s):
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(_feed(keeper, stdin))
                    group.create_task(_drain(keeper.stdout, stdout, limits.output_bytes, on_stdout))
                    group.create_task(_drain(keeper.stderr, stderr, limits.output_bytes))
                    group.create_task(keeper.wait())
            except* _TooMuchOutput:
                exceeded = "output"
    except TimeoutError:
        exceeded = "wall"
    return bytes(stdout), bytes(stderr), exceeded


class _TooMuchOutput(Exception):  # noqa: N818  (internal control flow)
    pass


async def _feed(keeper: asyncio.subprocess.Process, stdin: bytes) -> None:
    assert keeper.stdin is not None
    # The program may end, or close its input, before reading all of it.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        if stdin:
            keeper.stdin.write(stdin)
            await keeper.stdin.drain()
        keeper.stdin.close()


async def _drain(
    stream: asyncio.StreamReader,
    into: bytearray,
    cap_bytes: int,
    on_chunk: Callable[[bytes], Awaitable[None]] | None = None,
) -> None:
    while chunk := await stream.read(_CHUNK_BYTES):
        room = cap_bytes - len(into)
        into += chunk[:room]
        if on_chunk is not None:
            await on_chunk(chunk)
        if len(chunk) > room:
            raise _TooMuchOutput


async def _end(keeper: asyncio.subprocess.Process) -> None:
    """Ask the keeper to kill all descendants; kill them from here if it does not end in time."""
    assert keeper.stdin is not None
    keeper.stdin.close()
    with contextlib.suppress(ProcessLookupError):
        if keeper.returncode is None:
            keeper.terminate()
            keeper.send_signal(signal.SIGCONT)  # a descendant may have stopped it
    try:
        await asyncio.wait_for(_drain_and_wait(keeper), _KEEPER_GRACE_S)
    except TimeoutError:
        _kill_tree(keeper.pid)
        await _drain_and_wait(keeper)
    if keeper.returncode and keeper.returncode < 0:
        _kill_group(keeper.pid)
        remove_groups(keeper.pid)


async def _drain_and_wait(keeper: asyncio.subprocess.Process) -> None:
    """Wait for the keeper and drain its pipes, because asyncio's ``wait`` blocks until they are empty."""
    for stream in (keeper.stdout, keeper.stderr):
        while stream is not None and await stream.read(_CHUNK_BYTES):
            continue
    await keeper.wait()


def _kill_tree(keeper: int) -> None:
    """Kill a keeper that does not end, and before it, while it still holds them, its descendants."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(keeper, signal.SIGSTOP)  # it must not reap, or pids could be taken by other processes
    close_groups(keeper)
    stop_descendants(keeper)
    for _ in range(_KILL_PASSES):
        alive = [pid for pid in list_descendants(keeper) if not _is_zombie(pid)]
        for pid in alive:
            send_signal(pid, signal.SIGKILL)
        if not alive:
            break
    _kill_group(keeper)
    with contextlib.suppress(ProcessLookupError):
        os.kill(keeper, signal.SIGKILL)  # should it have no group of its own yet


def _kill_group(keeper: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(keeper, signal.SIGKILL)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except (OSError, IndexError):
        return True


def _read_report(descriptor: int) -> dict[str, Any] | None:
    """Read the result that the keeper wrote; None when the keeper was killed."""
    os.set_blocking(descriptor, False)
    try:
        raw = os.read(descriptor, 4096)
    except BlockingIOError:
        raw = b""
    finally:
        os.close(descriptor)
    return json.loads(raw) if raw else None


def _to_result(
    report: Mapping[str, Any] | None,
    stdout: bytes,
    stderr: bytes,
    exceeded: LimitName | None,
    duration_s: float,
) -> CommandResult:
    status = report["status"] if report else int(signal.SIGKILL)
    limit = exceeded
    if limit is None and report and report["limit"] in ("processes", "memory"):
        limit = report["limit"]
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    if limit is None and ended_by == signal.SIGXCPU:
        limit = "cpu"
    if limit is None and ended_by == signal.SIGXFSZ:
        limit = "file_size"
    return CommandResult(
        exit_code=None if ended_by is not None else os.WEXITSTATUS(status),
        signal=ended_by,
        stdout=stdout,
        stderr=stderr,
        duration_s=duration_s,
        limit=limit,
        bound=report["bound"] if report else "",
    )
