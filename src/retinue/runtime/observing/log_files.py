"""Log files in the state folder: ``hub.log`` of a hub without a terminal, ``logs/NAME.log`` of its agents.

A full file is renamed to ``NAME.log.1``, that one to ``NAME.log.2``, and so on; the oldest is removed.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import orjson
import structlog

from retinue.core.text import hide_tokens
from retinue.settings_tables import LogTable
from retinue.storage.files import write_all

_log = structlog.get_logger("retinue.logs")

_CHECK_S = 1.0
_CHECK_FAST_S = 0.05
"""Interval between two checks of a file that grows fast."""

_FLUSH_S = 0.2
_STDOUT, _STDERR = 1, 2
_BUFFERED_LINES = 10_000
"""Lines of one agent kept while its file cannot be written; beyond that the oldest are dropped."""


def open_appending(path: Path) -> int:
    """The descriptor of a log file that only its owner reads. Raises OSError."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def rotate(path: Path, files: int) -> None:
    """Rename a log file and its older ones, of which ``files`` are kept with the current. Raises OSError."""
    numbered = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, max(files, 1)))]
    numbered[-1].unlink(missing_ok=True)
    for older, newer in zip(reversed(numbered), list(reversed(numbered))[1:], strict=False):
        if newer.exists():
            newer.replace(older)


def writes_to(path: Path) -> bool:
    """Whether the standard error of this process is the file at ``path``."""
    try:
        return os.path.samestat(os.fstat(_STDERR), path.stat())
    except OSError:
        return False


async def keep_small(path: Path, limits_now: Callable[[], LogTable]) -> None:
    """Rotate the file that this process writes its output to, whenever it is full; runs until cancelled.

    The descriptors of standard output and error are replaced, so that all output goes to the new file.
    """
    size_bytes, wait_s = 0, _CHECK_S
    while True:
        await asyncio.sleep(wait_s)
        try:
            limits = limits_now()
            before_bytes, size_bytes = size_bytes, _rotate_output(path, limits)
            if size_bytes >= before_bytes:  # else it was rotated, and tells nothing of its growth
                wait_s = time_to_check((size_bytes - before_bytes) / wait_s, limits.file_bytes - size_bytes)
        except OSError as error:
            _log.warning("the log is not rotated", path=str(path), error=str(error))
            await asyncio.sleep(60)


def time_to_check(growth_bytes_per_s: float, room_bytes: int) -> float:
    """Seconds until the next check: half the time in which the file is full if it grows on like this."""
    if growth_bytes_per_s <= 0:
        return _CHECK_S
    return min(_CHECK_S, max(_CHECK_FAST_S, room_bytes / growth_bytes_per_s / 2))


def _rotate_output(path: Path, limits: LogTable) -> int:
    """Rotate the file if it is full; returns the bytes that are in the current one."""
    size_bytes = path.stat().st_size
    if size_bytes >= limits.file_bytes and writes_to(path):
        rotate(path, limits.files)
        new = open_appending(path)
        for descriptor in (_STDOUT, _STDERR):
            os.dup2(new, descriptor)
        os.close(new)
        return 0
    return size_bytes


class AgentLogs:
    """Writes what supervised agents print to ``FOLDER/NAME.log``, one JSON object a line.

    Log lines of Retinue's processes are JSON already; any other line becomes the ``line`` of an object with
    the time at which it arrived. Lines are written in batches, so that a call does not wait for the disk.
    """

    def __init__(self, folder: Path, limits: LogTable) -> None:
        self._folder = folder
        self.limits = limits
        """Size and number of the files; a change applies to the next lines."""
        self._names: dict[str, str] = {}
        self._waiting: dict[str, deque[bytes]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._failed = False

    def name(self, child: str, agent: str | None = None) -> None:
        """From now on the file of a child has the name of its agent; its own if none was known before.

        Until then the lines of the child wait, because what it prints first is of that agent too.
        """
        if agent is not None:
            self._names[child] = agent
        else:
            self._names.setdefault(child, child)
        self._flush_later()

    def take(self, child: str, line: str) -> None:
        """Keep one line of a child's output for the next batch."""
        self._waiting.setdefault(child, deque(maxlen=_BUFFERED_LINES)).append(_render(line))
        self._flush_later()

    def close(self) -> None:
        """Write all lines, also those of children that never became ready."""
        for child in self._waiting:
            self._names.setdefault(child, child)
        self._flush()

    def _flush_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_S, self._flush)

    def _flush(self) -> None:
        """Write the waiting lines; where that fails, they wait for the next batch."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for child, lines in self._waiting.items():
            if not lines or child not in self._names:
                continue
            try:
                path = self._folder / log_name(self._names[child])
                while lines:
                    batch = _take_batch(lines, self.limits.file_bytes)
                    self._write(path, b"\n".join(batch) + b"\n")
                    for _ in batch:
                        lines.popleft()
            except OSError as error:
                if not self._failed:
                    _log.warning("the output of an agent is not written", child=child, error=str(error))
                self._failed = True
            else:
                self._failed = False

    def _write(self, path: Path, data: bytes) -> None:
        if not self._folder.parent.is_dir():
            return  # the state folder was deleted: it must not come back half
        self._folder.mkdir(mode=0o700, exist_ok=True)
        size_bytes = path.stat().st_size if path.exists() else 0
        if size_bytes and size_bytes + len(data) > self.limits.file_bytes:
            rotate(path, self.limits.files)
        descriptor = open_appending(path)
        try:
            write_all(descriptor, data)
        finally:
            os.close(descriptor)


def _take_batch(lines: deque[bytes], file_bytes: int) -> list[bytes]:
    """The first lines that fit into one file; at least one."""
    batch: list[bytes] = []
    size_bytes = 0
    for line in lines:
        size_bytes += len(line) + 1
        if batch and size_bytes > file_bytes:
            break
        batch.append(line)
    return batch


def log_name(agent: str) -> str:
    """The file name of an agent's log, because a name may have characters that no file name can have."""
    return f"{quote(agent, safe='')[:200]}.log"


def _render(line: str) -> bytes:
    if line.startswith("{"):
        try:
            if isinstance(orjson.loads(line), Mapping):
                return line.encode()
        except orjson.JSONDecodeError:
            pass
    timestamp = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return orjson.dumps({"timestamp": timestamp, "event": "output", "line": hide_tokens(line)})
