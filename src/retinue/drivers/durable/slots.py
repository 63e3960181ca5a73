"""Who this process is among those that run workflows: a numbered slot of the state folder.

The engine takes back at its start what its executor id left behind, so no two living processes may
share one: a slot is held by a file lock, which the system lets go of when the process dies.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from retinue.drivers.files import refuse_gone, replace_file, storage_errors

_MAX_SLOTS = 1000


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot that is held: its executor id, unique among all machines, and those that nobody holds."""

    executor: str
    free: tuple[str, ...]


@contextmanager
def take_slot(folder: Path) -> Iterator[Slot]:
    """Hold the lowest free slot in ``folder``, which is made in the state's.

    Raises StateError where it cannot be written, or the state's folder is gone.
    """
    refuse_gone(folder.parent)
    with storage_errors(folder):
        folder.mkdir(exist_ok=True)
        host = _read_host(folder)
        number, lock = _lock_lowest(folder)
        free = [other for other in _list_numbers(folder) if other != number and _is_free(folder, other)]
    try:
        yield Slot(f"{host}-{number}", tuple(f"{host}-{other}" for other in free))
    finally:
        lock.release()


def _list_numbers(folder: Path) -> list[int]:
    names = [path.stem.removeprefix("slot-") for path in folder.glob("slot-*.lock")]
    return sorted(int(name) for name in names if name.isdecimal())


def _is_free(folder: Path, number: int) -> bool:
    lock = FileLock(folder / f"slot-{number}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    lock.release()
    return True


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
