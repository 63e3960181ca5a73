"""Whole files on disk: written beside their place and moved in, so that nobody ever reads half of one.

Failures come out as StateErrors that name the path: StorageFullError when there is no room.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from retinue.core.errors import StateError, StorageFullError

TEMPORARY_SUFFIX = ".tmp"
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into StorageFullError or StateError about ``path``."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise StorageFullError(str(path)) from error
        raise StateError(
            f"cannot write {path}: {error.strerror or error}", remedy="check the folder's owner and mode"
        ) from error


def refuse_gone(folder: Path) -> None:
    """Raise StateError where a folder is not there that `State.prepare` had made at the start.

    Who makes it anew meanwhile makes half a state, which others then take for a whole one.
    """
    if not folder.is_dir():
        raise StateError(
            f"the folder {folder} is not there", remedy="start this program again, which makes its state anew"
        )


def replace_file(path: Path, data: bytes, *, mode: int = 0o644, sync: bool = True) -> None:
    """Write ``data`` as the whole of ``path``: temporary file, fsync, rename, fsync of the folder.

    ``sync=False`` leaves the last to the caller, who writes several files and then ``sync_folder``.

    Readers see the old content or the new, also after a power cut. On any failure the old file
    stands and the temporary one is gone. The modification time is set in nanoseconds: the kernel's
    own clock ticks too coarsely for readers who tell versions apart by it. Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}{TEMPORARY_SUFFIX}")
    try:
        _write_new(temporary, data, mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last; a system that cannot is left as it is.

    By now the files are in place: a failure here means less safety over a power cut, not a failed write.
    """
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of writers that died; only for who holds the folder's lock."""
    for leftover in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        leftover.unlink(missing_ok=True)


def _write_new(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        now_ns = time.time_ns()
        os.utime(descriptor, ns=(now_ns, now_ns))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
