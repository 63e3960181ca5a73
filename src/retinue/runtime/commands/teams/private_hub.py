"""A hub over a temporary state, which a command starts and ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from collections.abc import Iterator

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
async def private_hub(
    state: State, folder: Path, environ: Mapping[str, str], arguments: Sequence[str] = ()
) -> AsyncIterator[str]:
    """Run a bare hub with the settings of ``folder``, and give its URL.

    Of ``environ`` it gets what every child of a hub gets, so it has no key of a model. Raises StateError with
    the last lines that a hub has printed which does not start.
    """
    own = {name: value for name, value in environ.items() if name.startswith("PYTHON")}
    log = state.root / "private-hub.log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "retinue", "hub", "--bare", "--port", "0", *arguments],
            cwd=folder,
            env={**select_inherited(environ), **own, "RETINUE_HOME": str(state.root)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield await _wait_until_ready(state, process, log)
    finally:
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()  # its agents then stop by themselves
            await asyncio.to_thread(process.wait)


async def _wait_until_ready(state: State, process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_WITHIN_S
    while time.monotonic() < deadline:
        hub = state.read_hub()
        if hub is not None and hub.is_ready:
            return hub.url
        if process.poll() is not None:
            lines = log.read_text("utf-8", "replace").strip().splitlines()
            printed = " · ".join(lines[-_SHOWN_LINES:]) or "it printed nothing"
            raise StateError(f"the hub of the replay does not start: {printed}")
        await asyncio.sleep(_POLL_S)
    raise StateError(f"the hub of the replay was not ready within {START_WITHIN_S:.0f} s")
