"""Who this process is among those that run workflows: a numbered slot of the state folder.

The engine takes back at its start what its executor id left behind, so no two living processes may
share one: a slot is held by a file lock, which the system lets go of when the process dies.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from retinue.drivers.files import replace_file, storage_errors

_MAX_SLOTS = 1000


@contextmanager
def take_slot(folder: Path) -> Iterator[str]:
    """Hold the lowest free slot in ``folder``; gives its executor id, unique among all machines.

    Raises StateError where the folder cannot be written.
    """
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        host = _read_host(folder)
        number, lock = _lock_lowest(folder)
    try:
        yield f"{host}-{number}"
    finally:
        lock.release()


def _lock_lowest(folder: Path) -> tuple[int, FileLock]:
    for number in range(1, _MAX_SLOTS + 1):
        lock = FileLock(folder / f"slot-{number}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        return number, lock
    raise OSError(f"all {_MAX_SLOTS} slots are taken")


def _read_host(folder: Path) -> str:
    """The name of this state folder among all that share a database; made at the first call."""
    path = folder / "host"
    with FileLock(folder / ".lock"):
        if path.exists():
            return path.read_text("ascii").strip()
        host = secrets.token_hex(6)
        replace_file(path, host.encode())
        return host
