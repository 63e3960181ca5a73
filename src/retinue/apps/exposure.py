"""The lists of an ``agent.json`` while its agent runs: warned of when they name nothing, read anew when
the file changes (SPEC 5, doubts 8 and 12)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from retinue.apps.serving import end_task
from retinue.apps.targets import Target, read_lists
from retinue.core.errors import RetinueError
from retinue.mesh.visibility import ExposureLists

POLL_S = 0.3

Say = Callable[[str], None]
Stamp = tuple[int, int] | None


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
    target: Target, say: Say, then: Callable[[], Awaitable[None]] | None = None
) -> AsyncIterator[None]:
    """Let a change of the file's lists take effect while inside; ``then`` follows each.

    A file that cannot be read is said so, and leaves everything as it is.
    """
    if target.lists_file is None:
        yield
        return
    # taken now, and not when the task gets its turn: what changes meanwhile must not go unseen
    seen, lists = _stamp(target.lists_file), read_lists(target.lists_file)
    for warning in list_warnings(target):
        say(warning)
    task = asyncio.create_task(_watch(target, target.lists_file, say, then, seen, lists))
    try:
        yield
    finally:
        await end_task(task)


async def _watch(
    target: Target,
    path: Path,
    say: Say,
    then: Callable[[], Awaitable[None]] | None,
    seen: Stamp,
    lists: ExposureLists | None,
) -> None:
    while True:
        await asyncio.sleep(POLL_S)
        now = _stamp(path)
        if now == seen:
            continue
        seen = now
        try:
            newer = read_lists(path)
        except RetinueError as error:
            say(f"{error.message}; the lists stay as they were")
            continue
        if newer == lists:
            continue
        lists = newer
        target.agent.expose_by(lists)
        say(f"{path.name}: lists read anew")
        for warning in list_warnings(target):
            say(warning)
        if then is not None:
            await then()


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
