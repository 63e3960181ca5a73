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
    while True:
        await asyncio.sleep(_CHECK_S)
        try:
            _rotate_output(path, limits_now())
        except OSError as error:
            _log.warning("the log is not rotated", path=str(path), error=str(error))
            await asyncio.sleep(60)


def _rotate_output(path: Path, limits: LogTable) -> None:
    if path.stat().st_size >= limits.file_bytes and writes_to(path):
        rotate(path, limits.files)
        new = open_appending(path)
        for descriptor in (_STDOUT, _STDERR):
            os.dup2(new, descriptor)
        os.close(new)


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
                self._write(self._folder / log_name(self._names[child]), b"\n".join(lines) + b"\n")
            except OSError as error:
                if not self._failed:
                    _log.warning("the output of an agent is not written", child=child, error=str(error))
                self._failed = True
            else:
                self._failed = False
                lines.clear()

    def _write(self, path: Path, data: bytes) -> None:
        if not self._folder.parent.is_dir():
            return  # the state folder was deleted: it must not come back half
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if path.exists() and path.stat().st_size >= self.limits.file_bytes:
            rotate(path, self.limits.files)
        descriptor = open_appending(path)
        try:
            write_all(descriptor, data)
        finally:
            os.close(descriptor)


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
