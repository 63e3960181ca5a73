"""``serve --reload``: the agent starts again, in a fresh interpreter, whenever one of its files changes.

A new interpreter, because modules that an agent has imported cannot be unloaded; the same process, so
that whoever started it keeps its hold on it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from retinue.apps.targets import Target, load_target
from retinue.core.errors import RetinueError

POLL_S = 0.3

Say = Callable[[str], None]
Stamps = dict[Path, int | None]


def serve_reloading(text: str, serve_once: Callable[[Target], int], say: Say) -> int:
    """Serve ``text`` and restart this process after a change; returns only when told to stop.

    An agent that does not load is said so, and waits for the file to be mended.
    """
    place = _find_place(text)
    # Taken before the agent is loaded: what changes meanwhile must not go unseen.
    before = _neighbours([place])
    try:
        target = load_target(text)
    except RetinueError as error:
        if not place.is_file():
            raise
        say(f"{error.message}; waiting for a change")
        wait_for_change(before, threading.Event())
        _restart()
    before = _neighbours(target.files) | before
    stop, changed = threading.Event(), threading.Event()

    def watch() -> None:
        if wait_for_change(before, stop):
            changed.set()
            os.kill(os.getpid(), signal.SIGTERM)

    watcher = threading.Thread(target=watch, name="reload", daemon=True)
    watcher.start()
    try:
        status = serve_once(target)
    finally:
        stop.set()
    if changed.is_set():
        say("a file changed; starting again")
        _restart()
    return status


def wait_for_change(before: Stamps, stop: threading.Event) -> bool:
    """Wait until a file is not as it was in ``before``, or appears beside; False when told to stop."""
    folders = {path.parent for path in before}
    while not stop.wait(POLL_S):
        now = _neighbours(before)
        if any(now.get(path) != stamp for path, stamp in before.items()):
            return True
        if any(path not in before for path in now if path.parent in folders):
            return True
    return False


def _find_place(text: str) -> Path:
    """The file that a target stands in; no file for a module."""
    place = Path(text.partition(":")[0]).resolve()
    return place / "agent.json" if place.is_dir() else place


def _neighbours(files: Iterable[Path]) -> Stamps:
    """The files and the Python files beside them, with the time each was written."""
    wanted = set(files)
    for folder in {path.parent for path in wanted}:
        wanted.update(folder.glob("*.py"))
    return {path: _stamp(path) for path in wanted}


def _stamp(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _restart() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "retinue", *sys.argv[1:]])  # noqa: S606 - our own program
