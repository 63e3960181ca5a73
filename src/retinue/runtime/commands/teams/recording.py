"""Records a trace of a team that runs: asks its hub, waits, and collects what was written."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from filelock import FileLock, Timeout

from retinue.core.call import LOCAL
from retinue.core.errors import BusyError, InvalidSettingError, StateError
from retinue.runtime.teams.programs import read_installed
from retinue.runtime.teams.recording import MARKER, Recording, marker_of
from retinue.runtime.teams.store import TeamStore
from retinue.storage.files import replace_file, storage_errors
from retinue.storage.state import State
from retinue.team.package import Team
from retinue.team.trace import MAX_CALLS, RecordedCall, RecordedCompletion, TeamTrace

BEGIN_WITHIN_S = 5.0
_POLL_S = 0.05
_PRIVATE = 0o600


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """How long calls are recorded: at most ``for_s`` seconds and ``calls`` calls."""

    for_s: float
    calls: int = MAX_CALLS


def find_running(state: State, name: str) -> Team:
    """The team that is recorded. Raises InvalidSettingError for one that does not run on a hub now."""
    store = TeamStore(state)
    row = store.read_rows().get(name)
    if row is None or row.active is None:
        known = ", ".join(row.name for row in store.list_active()) or "none"
        raise InvalidSettingError("NAME", f"no team {name} runs; running: {known}", remedy="retinue team")
    if state.read_hub() is None:
        raise InvalidSettingError("NAME", "no hub runs", remedy="start it: retinue hub")
    return read_installed(store, name, row.active)


async def record_calls(
    state: State, team: Team, options: RecordOptions, echo: Callable[[str], None]
) -> TeamTrace:
    """Record the calls that the owner of the state makes to a team, until enough are there or time is over.

    A command that is cancelled ends the recording, and the calls so far are returned. Raises BusyError while
    another command records, and StateError for a hub that does not begin.
    """
    store = TeamStore(state)
    identifier = secrets.token_hex(8)
    until = time.time() + BEGIN_WITHIN_S + options.for_s
    recording = Recording(identifier, team.name, sorted(team.names), LOCAL.id, until)
    with _holding(state, store, recording):
        folder = recording.folder(store)
        await _wait_for_hub(state, folder)
        echo(f"recording for {options.for_s:g} s; Ctrl-C ends it")
        deadline = time.monotonic() + options.for_s
        sizes: dict[Path, int] = {}
        counts: dict[Path, int] = {}
        try:
            while time.monotonic() < deadline and _count_rows(folder, sizes, counts) < options.calls:
                await asyncio.sleep(_POLL_S)
        except asyncio.CancelledError:
            echo("ended")
        return _collect(team, _read_rows(folder)[: options.calls])


@contextmanager
def _holding(state: State, store: TeamStore, recording: Recording) -> Iterator[None]:
    """Let the hub record meanwhile, and leave nothing behind."""
    marker = marker_of(state)
    lock = FileLock(store.root / f"{MARKER}.lock", mode=_PRIVATE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BusyError("another command records calls of this state", 5.0) from None
    try:
        for leftover in store.root.glob("recording-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        with storage_errors(marker):
            replace_file(marker, recording.render(), mode=_PRIVATE)
        yield
    finally:
        marker.unlink(missing_ok=True)
        shutil.rmtree(recording.folder(store), ignore_errors=True)
        lock.release()


async def _wait_for_hub(state: State, folder: Path) -> None:
    """Wait until each process of the hub has begun to record."""
    hub = state.read_hub()
    processes = 1 if hub is None else hub.processes
    deadline = time.monotonic() + BEGIN_WITHIN_S
    while len(_list_files(folder)) < processes:
        if time.monotonic() > deadline:
            raise StateError("the hub does not begin to record", remedy="does it answer? retinue status")
        await asyncio.sleep(_POLL_S)


def _list_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jsonl"))


def _count_rows(folder: Path, sizes: dict[Path, int], counts: dict[Path, int]) -> int:
    """The number of rows; a file is read only where its size is not the one of ``sizes``."""
    for file in _list_files(folder):
        if (size_bytes := file.stat().st_size) != sizes.get(file):
            sizes[file], counts[file] = size_bytes, file.read_bytes().count(b"\n")
    return sum(counts.values())


def _read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows that the processes of the hub have written whole.

    The end of a file without a line break is a row that is being written. A line that is not JSON was cut by
    a full disk, and counts as one that was left out.
    """
    rows: list[dict[str, Any]] = []
    for file in _list_files(folder):
        for line in file.read_bytes().split(b"\n")[:-1]:
            try:
                rows.append(orjson.loads(line))
            except orjson.JSONDecodeError:
                rows.append({})
    return rows


def _collect(team: Team, rows: list[dict[str, Any]]) -> TeamTrace:
    calls = [RecordedCall.model_validate(row["call"]) for row in rows if "call" in row]
    replies = [reply for row in rows for reply in row.get("completions", ())]
    kept = [RecordedCompletion.model_validate(reply) for reply in replies if reply]
    return TeamTrace(
        schema=1,
        team=team.name,
        version=team.version,
        digest=team.digest,
        calls=tuple(calls),
        completions=tuple(kept),
        omitted=len(rows) - len(calls) + len(replies) - len(kept),
    )
