"""Starts the hub of a state folder if none is running."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

from filelock import FileLock, Timeout

from retinue.core.durations import render_duration
from retinue.core.errors import StateError
from retinue.execute.probe import answers
from retinue.storage.files import storage_errors
from retinue.storage.state import HUB_VARIABLE, State, find_hub_url
from retinue.web.http_client import HttpClient

START_WITHIN_S = 30.0
READY_WITHIN_S = 10.0
_POLL_S = 0.05
_SHOWN_LOG_LINES = 3


async def ensure_hub(state: State, http: HttpClient, *, probe_timeout_s: float = 2.0) -> str:
    """The URL of the running hub, which is started if necessary; ``RETINUE_HUB`` is returned unchecked.

    If several processes call this at once, one of them starts the hub, under a lock. The hub is a detached
    process that outlives its starter. Raises StateError.
    """
    if given := os.environ.get(HUB_VARIABLE):
        return given
    url = await _find(state, http, probe_timeout_s)
    if url is not None:
        return url
    state.prepare()
    lock = FileLock(state.root / "hub-start.lock", mode=0o600)
    deadline = time.monotonic() + START_WITHIN_S
    while True:
        try:
            lock.acquire(timeout=0)
            break
        except Timeout:
            if time.monotonic() > deadline:
                raise StateError(
                    "another process tries to start the hub and does not succeed", remedy=_remedy(state)
                ) from None
            await asyncio.sleep(_POLL_S)
    try:
        url = await _find(state, http, probe_timeout_s)
        return url if url is not None else await _start(state, http, probe_timeout_s, deadline)
    finally:
        lock.release()


async def _find(state: State, http: HttpClient, probe_timeout_s: float) -> str | None:
    url = find_hub_url(state)
    if url is None or await answers(http, url, timeout_s=probe_timeout_s) is not None:
        return None
    return url


async def _start(state: State, http: HttpClient, probe_timeout_s: float, deadline: float) -> str:
    log = state.root / "hub.log"
    process = _spawn(state, log)
    while time.monotonic() < deadline:
        url = await _find(state, http, probe_timeout_s)
        if url is not None:
            await _wait_for_agents(state)
            return url
        if process.poll() is not None:
            lines = log.read_text("utf-8", "replace").strip().splitlines()[-_SHOWN_LOG_LINES:]
            raise StateError(f"the hub does not start: {' · '.join(lines)}", remedy=_remedy(state))
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


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _spawn(state: State, log: Path) -> subprocess.Popen[bytes]:
    with storage_errors(log), open(log, "wb", opener=_open_private) as output:
        return subprocess.Popen(
            [sys.executable, "-m", "retinue", "hub", "--port-may-move"],
            env={**os.environ, "RETINUE_HOME": str(state.root)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _remedy(state: State) -> str:
    return f"see {state.root / 'hub.log'}, or start it in a terminal: retinue hub"
