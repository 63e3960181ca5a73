"""Reads the log of a mesh: calls of its hub, and the output of the hub and its agents.

Calls come from the audit log, the rest from ``hub.log`` and ``logs/NAME.log`` of the state folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import orjson

from retinue.core.text import hide_tokens
from retinue.runtime.observing.log_files import log_name
from retinue.storage.audit_log import AuditLog
from retinue.storage.state import State

TAIL_BYTES = 1024 * 1024
"""How much of a file and of the one before it is looked through for the last lines."""

_HELD_ROUNDS = 3
"""How many reads a call of an agent's own log waits, to see whether the hub records it too."""

HUB = "hub"

Row = Mapping[str, Any]
"""One line: ``timestamp``, ``source`` ("hub" or an agent), ``event``, and what else was logged."""


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Which lines are wanted; without an agent, a trace or failures, all."""

    agent: str | None = None
    trace: str | None = None
    failed: bool = False

    def takes(self, row: Row) -> bool:
        """Whether a line of a file is wanted."""
        if self.trace is not None and row.get("trace_id") != self.trace:
            return False
        if self.agent is not None and self.agent not in (row["source"], row.get("agent")):
            return False
        if self.failed and row["event"] == "call":
            return bool(row.get("status") != "done")
        return not self.failed or row.get("level") in ("warning", "error", "critical")


class MeshLog:
    """Reads the log of a state: first the last lines, then the added ones."""

    def __init__(self, state: State, log_filter: LogFilter) -> None:
        self._state = state
        self._filter = log_filter
        self._audit = AuditLog(state.database)
        self._after = self._audit.find_end()
        self._files: dict[Path, _LogFile] = {}
        self._held: list[tuple[int, Row]] = []

    def read_last(self, limit: int) -> list[Row]:
        """The last ``limit`` lines, the oldest first."""
        calls, last = self._audit.read_calls(
            limit=limit, agent=self._filter.agent, trace=self._filter.trace, failed=self._filter.failed
        )
        self._after = max(self._after, last)
        rows = [row for file in self._list_files() for row in file.read_last()]
        known = self._audit.find_traces({row["trace_id"] for row in rows if _is_own_call(row)})
        rows = [row for row in rows if not _is_own_call(row) or row["trace_id"] not in known]
        lines = _sorted([*map(_as_row, calls), *filter(self._filter.takes, rows)])
        return lines[-limit:] if limit else []

    def read_new(self) -> list[Row]:
        """The lines since the last read, in the order of their times."""
        calls, self._after = self._audit.read_calls(
            after=self._after,
            agent=self._filter.agent,
            trace=self._filter.trace,
            failed=self._filter.failed,
        )
        rows = []
        for row in (row for file in self._list_files() for row in file.read_new()):
            if _is_own_call(row):
                self._held.append((0, row))
            else:
                rows.append(row)
        due = [row for rounds, row in self._held if rounds >= _HELD_ROUNDS]
        self._held = [(rounds + 1, row) for rounds, row in self._held if rounds < _HELD_ROUNDS]
        known = self._audit.find_traces({row["trace_id"] for row in due}) if due else set()
        rows += [row for row in due if row["trace_id"] not in known]
        return _sorted([*map(_as_row, calls), *filter(self._filter.takes, rows)])

    def _list_files(self) -> list[_LogFile]:
        """The files that there are now; an agent may have been started since the last read."""
        if self._filter.agent is None:
            agents = sorted(self._state.agent_logs.glob("*.log"))
            paths = {self._state.hub_log: HUB} | {path: unquote(path.stem) for path in agents}
        else:
            path = self._state.agent_logs / log_name(self._filter.agent)
            paths = {self._state.hub_log: HUB, path: self._filter.agent}
        for path, source in paths.items():
            self._files.setdefault(path, _LogFile(path, source))
        return list(self._files.values())


@dataclass(slots=True)
class _LogFile:
    """One log file and the read position; also across its rotation."""

    path: Path
    source: str
    _inode: int = 0
    _offset: int = 0
    _part: bytes = b""
    _time: str = ""

    def read_last(self) -> list[Row]:
        rows: list[Row] = []
        for path in (self.path.with_name(f"{self.path.name}.1"), self.path):
            try:
                with path.open("rb") as file:
                    size = file.seek(0, os.SEEK_END)
                    file.seek(max(0, size - TAIL_BYTES))
                    data = file.read()
                    self._inode, self._offset = os.fstat(file.fileno()).st_ino, file.tell()
            except OSError:
                continue
            if size > TAIL_BYTES:
                data = data.partition(b"\n")[2]
            whole, _, self._part = data.rpartition(b"\n")
            rows += self._parse(whole)
        return rows

    def read_new(self) -> list[Row]:
        rows: list[Row] = []
        try:
            with self.path.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if self._inode and inode != self._inode:
                    rows += self._read_rest()
                    self._offset, self._part = 0, b""
                self._inode = inode
                file.seek(self._offset)
                rows += self._take(file.read())
                self._offset = file.tell()
        except FileNotFoundError:
            return rows  # between its renaming and the next line
        return rows

    def _read_rest(self) -> list[Row]:
        """The end of the file that was renamed since the last read."""
        with self.path.with_name(f"{self.path.name}.1").open("rb") as file:
            if os.fstat(file.fileno()).st_ino != self._inode:
                return []
            file.seek(self._offset)
            return self._take(file.read())

    def _take(self, data: bytes) -> list[Row]:
        whole, newline, rest = (self._part + data).rpartition(b"\n")
        self._part = rest
        return list(self._parse(whole)) if newline else []

    def _parse(self, data: bytes) -> Iterator[Row]:
        for line in data.splitlines():
            try:
                entry = orjson.loads(line)
            except orjson.JSONDecodeError:
                entry = None
            if isinstance(entry, dict) and isinstance(entry.get("event"), str):
                # the hub's calls are in the audit log
                if self.source == HUB and entry["event"] == "call":
                    self._time = str(entry.get("timestamp") or self._time)
                    continue
            elif text := line.decode("utf-8", "replace").rstrip():
                entry = {"event": "output", "line": hide_tokens(text)}
            else:
                continue
            self._time = str(entry.get("timestamp") or self._time)
            yield {**entry, "timestamp": self._time, "source": self.source}


def _is_own_call(row: Row) -> bool:
    return row["event"] == "call" and row["source"] != HUB and isinstance(row.get("trace_id"), str)


def _as_row(call: Row) -> Row:
    timestamp = str(call["timestamp"]).replace("+00:00", "Z")
    rest = {key: value for key, value in call.items() if key not in ("type", "timestamp")}
    return {"timestamp": timestamp, "source": HUB, "event": "call", **rest}


def _sorted(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["timestamp"])
