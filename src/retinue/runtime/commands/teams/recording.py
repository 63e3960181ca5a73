"""Records a trace of a team that runs: asks its hub, waits, and collects what was written.

A run of a workflow is recorded with what it gives when it has ended.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from filelock import FileLock, Timeout

from retinue.client.mesh_client import MeshClient
from retinue.core.call import LOCAL
from retinue.core.errors import BusyError, InvalidSettingError, RetinueError, StateError
from retinue.runtime.teams.programs import read_installed
from retinue.runtime.teams.recording import MARKER, REPLIES, Recording, list_secrets, marker_of, with_answer
from retinue.runtime.teams.store import TeamStore
from retinue.storage.files import replace_file, storage_errors
from retinue.storage.state import State
from retinue.team.package import Team
from retinue.team.trace import (
    MAX_CALLS,
    RecordedAnswer,
    RecordedCall,
    RecordedCompletion,
    TeamTrace,
    answer_of_run,
)

BEGIN_WITHIN_S = 5.0
_POLL_S = 0.05
_POLL_RUNS_S = 0.5
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
    state: State, client: MeshClient, team: Team, options: RecordOptions, echo: Callable[[str], None]
) -> TeamTrace:
    """Record the calls that the owner of the state makes to a team, until enough are there or time is over.

    ``client`` reads how runs end; those that have not ended by then are left out. A command that is cancelled
    ends the recording, and the calls so far are returned. Raises BusyError while another command records, and
    StateError for a hub that does not begin.
    """
    store = TeamStore(state)
    identifier = secrets.token_hex(8)
    until = time.time() + BEGIN_WITHIN_S + options.for_s
    workflows = sorted(team.workflow_names)
    recording = Recording(identifier, team.name, sorted(team.names), workflows, LOCAL.id, until)
    with _holding(state, store, recording):
        folder = recording.folder(store)
        await _wait_for_hub(state, folder)
        echo(f"recording for {options.for_s:g} s; Ctrl-C ends it")
        deadline = time.monotonic() + options.for_s
        answers: dict[str, RecordedAnswer | None] = {}
        sizes: dict[Path, int] = {}
        counts: dict[Path, int] = {}
        try:
            while time.monotonic() < deadline and _count_calls(folder, sizes, counts) < options.calls:
                await asyncio.sleep(_POLL_S)
            while await _read_answers(client, folder, answers) and time.monotonic() < deadline:
                await asyncio.sleep(_POLL_RUNS_S)
        except asyncio.CancelledError:
            echo("ended")
            await _read_answers(client, folder, answers)
        return _collect(team, _read_rows(folder), answers, list_secrets(store, team.name), options.calls)


async def _read_answers(client: MeshClient, folder: Path, answers: dict[str, RecordedAnswer | None]) -> bool:
    """Add what the runs gave that have ended, None for a cancelled one; returns whether some have not."""
    open_runs = {row["run"] for row in _list_calls(folder) if "run" in row} - answers.keys()
    for run in sorted(open_runs):
        with suppress(RetinueError):  # the hub does not answer now
            row = await client.get("show_run", {"run": run})
            if row["status"] != "running":
                answers[run] = answer_of_run(row)
    return not open_runs <= answers.keys()


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


def _count_calls(folder: Path, sizes: dict[Path, int], counts: dict[Path, int]) -> int:
    """The number of rows of calls; a file is read only where its size is not the one of ``sizes``."""
    for file in _list_files(folder):
        if (size_bytes := file.stat().st_size) != sizes.get(file):
            lines = file.read_bytes().split(b"\n")[:-1]
            sizes[file], counts[file] = size_bytes, sum(not line.startswith(REPLIES) for line in lines)
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


def _list_calls(folder: Path) -> list[dict[str, Any]]:
    """The rows of calls and of runs."""
    return [row for row in _read_rows(folder) if "call" in row]


def _collect(
    team: Team,
    rows: list[dict[str, Any]],
    answers: Mapping[str, RecordedAnswer | None],
    hidden: Sequence[str],
    most: int,
) -> TeamTrace:
    """The trace of at most so many calls; ``hidden`` are the values of secrets."""
    calls: list[RecordedCall] = []
    omitted = sum("call" not in row and "completions" not in row for row in rows)
    for row in [row for row in rows if "call" in row][:most]:
        call = RecordedCall.model_validate(row["call"])
        if "run" not in row:
            calls.append(call)
        elif (answer := answers.get(row["run"])) is not None:
            calls.append(with_answer(call, answer, hidden))
        else:
            omitted += 1
    replies = [reply for row in rows for reply in row.get("completions", ())]
    kept = [RecordedCompletion.model_validate(reply) for reply in replies if reply]
    return TeamTrace(
        schema=1,
        team=team.name,
        version=team.version,
        digest=team.digest,
        calls=tuple(calls),
        completions=tuple(kept),
        omitted=omitted + len(replies) - len(kept),
    )
