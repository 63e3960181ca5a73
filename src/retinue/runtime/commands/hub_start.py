"""Starts the hub of a state folder as a detached process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from retinue.core.durations import render_duration
from retinue.core.errors import HubRunningError, StateError
from retinue.rpc.probe import answers
from retinue.runtime.observing.log_files import open_appending, rotate
from retinue.runtime.serving import bind
from retinue.settings_tables import LogTable
from retinue.storage.files import check_room, storage_errors
from retinue.storage.state import HUB_VARIABLE, HubAddress, State
from retinue.web.http_client import HttpClient

START_WITHIN_S = 60.0
READY_WITHIN_S = 10.0
_POLL_S = 0.05
_SHOWN_LOG_LINES = 3
_SHOWN_LOG_BYTES = 4096


async def ensure_hub(
    state: State,
    http: HttpClient,
    arguments: Sequence[str] = (),
    *,
    probe_timeout_s: float = 2.0,
    logs: LogTable | None = None,
) -> str:
    """The URL of the running hub, which is started if necessary; ``RETINUE_HUB`` is returned unchecked.

    It is started with these arguments of ``retinue hub``; without a port there it takes a free one.

    If several processes call this at once, one of them starts the hub, under a lock. The hub is a detached
    process that outlives its starter. Raises StateError.
    """
    if address := os.environ.get(HUB_VARIABLE):
        return address
    url = await _find(state, http, probe_timeout_s)
    if url is not None:
        return url
    deadline = time.monotonic() + START_WITHIN_S
    lock = await _lock(state, deadline)
    try:
        url = await _find(state, http, probe_timeout_s)
        if url is None:
            if "--port" not in arguments:
                arguments = (*arguments, "--port-may-move")
            url = await _start(state, http, arguments, probe_timeout_s, deadline, logs or LogTable())
        return url
    finally:
        lock.release()


async def detach_hub(
    state: State,
    http: HttpClient,
    arguments: Sequence[str],
    *,
    host: str,
    port: int,
    probe_timeout_s: float,
    logs: LogTable,
) -> HubAddress:
    """Start the hub as a detached process with these arguments of ``retinue hub``; return when it answers.

    Its output goes to ``hub.log`` of the state folder. Raises HubRunningError, PortInUseError for a taken
    ``port`` (0: any free one), and StateError with the last lines of the log if it ends.
    """
    deadline = time.monotonic() + START_WITHIN_S
    lock = await _lock(state, deadline)
    try:
        running = state.read_hub()
        if running is not None:
            raise HubRunningError(running.url, running.pid, str(state.root))
        bind(host, port).close()
        await _start(state, http, arguments, probe_timeout_s, deadline, logs)
        hub = state.read_hub()
        if hub is None:
            raise StateError("the hub ended as soon as it had started", remedy=_remedy(state))
        return hub
    finally:
        lock.release()


async def _lock(state: State, deadline: float) -> FileLock:
    """The lock under which one process at a time starts a hub."""
    state.prepare()
    lock = FileLock(state.root / "hub-start.lock", mode=0o600)
    while True:
        try:
            lock.acquire(timeout=0)
            return lock
        except Timeout:
            if time.monotonic() > deadline:
                raise StateError(
                    "another process tries to start the hub and does not succeed", remedy=_remedy(state)
                ) from None
            await asyncio.sleep(_POLL_S)


async def _find(state: State, http: HttpClient, probe_timeout_s: float) -> str | None:
    hub = state.read_hub()
    if hub is None or await answers(http, hub.url, timeout_s=probe_timeout_s) is not None:
        return None
    return hub.url


async def _start(
    state: State,
    http: HttpClient,
    arguments: Sequence[str],
    probe_timeout_s: float,
    deadline: float,
    logs: LogTable,
) -> str:
    log = state.hub_log
    with storage_errors(log):
        if log.exists() and log.stat().st_size >= logs.file_bytes:
            rotate(log, logs.files)
        begin = log.stat().st_size if log.exists() else 0
        process = _spawn(state, arguments, log)

    while time.monotonic() < deadline:
        url = await _find(state, http, probe_timeout_s)
        if url is not None:
            await _wait_for_agents(state)
            return url
        if process.poll() is not None:
            printed = _read_end(log, begin)
            if not printed:
                with storage_errors(log):
                    check_room(log.parent)
            raise StateError(
                f"the hub does not start: {printed or 'it printed nothing'}", remedy=_remedy(state)
            )
        await asyncio.sleep(_POLL_S)
    raise StateError(f"the hub was not ready within {render_duration(START_WITHIN_S)}", remedy=_remedy(state))


async def _wait_for_agents(state: State) -> None:
    """Wait a few seconds for the agents that the hub starts, so that the first list is not empty."""
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        hub = state.read_hub()
        if hub is None or hub.is_ready:
            return
        await asyncio.sleep(_POLL_S)


def _spawn(state: State, arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    output = open_appending(log)
    try:
        return subprocess.Popen(  # noqa: S603 - our own program with options that click has parsed
            [sys.executable, "-m", "retinue", "hub", *arguments],
            env={**os.environ, "RETINUE_HOME": str(state.root)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    finally:
        os.close(output)


def _read_end(log: Path, begin: int) -> str:
    """The last lines that this start has added to the log."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(begin if begin <= size else 0, size - _SHOWN_LOG_BYTES))
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return " · ".join(lines[-_SHOWN_LOG_LINES:]).removeprefix("error: ")


def _remedy(state: State) -> str:
    return f"see {state.hub_log}, or start it in a terminal: retinue hub"
