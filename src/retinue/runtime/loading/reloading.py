"""Reloads a served agent: all of it with ``serve --reload``, its exposure lists always.

``serve --reload`` restarts the interpreter when a file of the agent changes, because imported modules cannot
be unloaded. The process id stays the same, so the parent can still signal it.

Without a restart, a change of the lists in ``agent.json`` takes effect while the agent runs, and entries
that match nothing are reported (specification 5, doubts 8 and 12).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from retinue.core.errors import RetinueError
from retinue.mesh.permissions import ExposureLists
from retinue.parts.process import Echo
from retinue.runtime.loading.targets import Target, load_target, read_lists
from retinue.runtime.serving import in_background

POLL_S = 0.3

Stamps = dict[Path, int | None]
"""Modification time of each file in ns; None if it does not exist."""

ListsStamp = tuple[int, int] | None
"""Modification time in ns and size in bytes; None if the file does not exist."""


def serve_reloading(text: str, serve_once: Callable[[Target, Callable[[int], None]], int], echo: Echo) -> int:
    """Serve the target ``text`` and restart this process after a change; returns only when asked to stop.

    If the agent does not load, the error is printed and the next change of its files awaited. ``serve_once``
    serves and returns the exit code; where a blocked thread keeps it from returning, it calls the function
    that it was given with the code.
    """
    place = _find_place(text)
    # compiled files tell seconds only: a change of the same size within a second would be overlooked
    sys.dont_write_bytecode = True
    # before the agent is loaded, to detect changes made meanwhile
    before = _neighbours([place])
    try:
        target = load_target(text)
    except RetinueError as error:
        if not place.is_file():
            raise
        echo(f"{error.message}; waiting for a change")
        wait_for_change(before, threading.Event())
        _restart()
    before = _neighbours(target.files) | before
    stop, changed = threading.Event(), threading.Event()

    def watch() -> None:
        if wait_for_change(before, stop):
            changed.set()
            os.kill(os.getpid(), signal.SIGTERM)

    def restart_if_changed() -> None:
        if changed.is_set():
            echo("a file changed; restarting")
            _restart()

    def leave(code: int) -> None:
        try:
            restart_if_changed()
        finally:
            os._exit(code)

    watcher = threading.Thread(target=watch, name="reload", daemon=True)
    watcher.start()
    try:
        status = serve_once(target, leave)
    finally:
        stop.set()
    restart_if_changed()
    return status


def wait_for_change(before: Stamps, stop: threading.Event, poll_s: float = POLL_S) -> bool:
    """Wait until a file changes or a new one appears in its folder; False if asked to stop."""
    folders = {path.parent for path in before}
    while not stop.wait(poll_s):
        now = _neighbours(before)
        if any(now.get(path) != stamp for path, stamp in before.items()):
            return True
        if any(path not in before for path in now if path.parent in folders):
            return True
    return False


def _find_place(text: str) -> Path:
    """The file of a target; for a module a path that does not exist."""
    place = Path(text.partition(":")[0]).resolve()
    return place / "agent.json" if place.is_dir() else place


def _neighbours(files: Iterable[Path]) -> Stamps:
    """The stamps of the files and of the Python files in their folders."""
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


def list_warnings(target: Target) -> list[str]:
    """One line for each entry of the lists that matches nothing of the agent."""
    if target.lists_file is None:
        return []
    lists = read_lists(target.lists_file)
    if lists is None:
        return []
    return [f"warning: {entry}" for entry in lists.find_unknown(target.agent.record(with_facts=True))]


@asynccontextmanager
async def watch_lists(
    target: Target, echo: Echo, on_change: Callable[[], Awaitable[None]] | None = None
) -> AsyncIterator[None]:
    """While inside, apply changes of the file's lists and call ``on_change`` after each.

    If the file cannot be read, the error is printed and the lists stay as they are.
    """
    if target.lists_file is None:
        yield
        return
    # before the task starts, to detect changes made meanwhile
    seen, lists = _stamp_of_lists(target.lists_file), read_lists(target.lists_file)
    for warning in list_warnings(target):
        echo(warning)
    async with in_background(_watch(target, target.lists_file, echo, on_change, seen, lists)):
        yield


async def _watch(
    target: Target,
    path: Path,
    echo: Echo,
    on_change: Callable[[], Awaitable[None]] | None,
    seen: ListsStamp,
    lists: ExposureLists | None,
) -> None:
    while True:
        await asyncio.sleep(POLL_S)
        now = _stamp_of_lists(path)
        if now == seen:
            continue
        seen = now
        try:
            newer = read_lists(path)
        except RetinueError as error:
            echo(f"{error.message}; keeping the previous lists")
            continue
        if newer == lists:
            continue
        lists = newer
        target.agent.expose_by(lists)
        echo(f"{path.name}: lists reloaded")
        for warning in list_warnings(target):
            echo(warning)
        if on_change is not None:
            await on_change()


def _stamp_of_lists(path: Path) -> ListsStamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
