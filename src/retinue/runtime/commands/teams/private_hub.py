"""A hub over a temporary state, which a command starts and ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from retinue.core.errors import StateError
from retinue.processes.environment import select_inherited
from retinue.storage.state import State

START_WITHIN_S = 60.0
STOP_WITHIN_S = 15.0
_POLL_S = 0.05
_SHOWN_LINES = 3


@contextmanager
def temporary_state() -> Iterator[State]:
    """A state folder that is removed on leaving."""
    with tempfile.TemporaryDirectory(prefix="retinue-", ignore_cleanup_errors=True) as folder:
        state = State(Path(folder) / "state")
        state.prepare()
        yield state


@asynccontextmanager
async def private_hub(state: State, folder: Path, environ: Mapping[str, str]) -> AsyncIterator[str]:
    """Run a bare hub with the settings of ``folder``, and give its URL.

    Of ``environ`` it gets what every child of a hub gets, so it has no key of a model. Raises StateError with
    the last lines that a hub has printed which does not start.
    """
    process = _start(state, folder, environ)
    try:
        yield await _wait_until_ready(state, process)
    finally:
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()  # its agents then stop by themselves
            await asyncio.to_thread(process.wait)


def _start(state: State, folder: Path, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    own = {name: value for name, value in environ.items() if name.startswith("PYTHON")}
    with _log_of(state).open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "retinue", "hub", "--bare", "--port", "0"],
            cwd=folder,
            env={**select_inherited(environ), **own, "RETINUE_HOME": str(state.root)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _log_of(state: State) -> Path:
    return state.root / "private-hub.log"


async def _wait_until_ready(state: State, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + START_WITHIN_S
    while time.monotonic() < deadline:
        hub = state.read_hub()
        if hub is not None and hub.is_ready:
            return hub.url
        if process.poll() is not None:
            raise StateError(f"the hub of the replay does not start: {_read_end(_log_of(state))}")
        await asyncio.sleep(_POLL_S)
    raise StateError(f"the hub of the replay was not ready within {START_WITHIN_S:.0f} s")


def _read_end(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    return " · ".join(lines[-_SHOWN_LINES:]) or "it printed nothing"
