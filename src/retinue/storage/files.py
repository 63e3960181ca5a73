"""Replaces files atomically by write and rename, so that no reader sees a partial file.

`hold_lock` serialises the changes of several processes. `storage_errors` converts an OSError to a StateError
that names the path, StorageFullError when the disk is full.
"""

from __future__ import annotations

import errno
import os
import secrets
import sqlite3
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from retinue.core.errors import StateError, StorageFullError

TEMPORARY_SUFFIX = ".tmp"
LOCK_WITHIN_S = 10.0
"""Seconds to wait for a lock file, which other processes hold for milliseconds."""

_ROOM_BYTES = 65_536
_BUSY_TIMEOUT_S = 5.0
_BUSY_PAUSE_S = 0.01
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Convert an OSError raised in the block to StorageFullError or StateError for ``path``."""
    try:
        yield
    except OSError as error:
        if is_no_room(error):
            raise StorageFullError(str(path)) from error
        raise StateError(
            f"cannot write {path}: {error.strerror or error}",
            remedy="check the owner and permissions of the folder",
        ) from error


@contextmanager
def hold_lock(path: Path, *, mode: int, within_s: float = LOCK_WITHIN_S) -> Iterator[None]:
    """Hold the lock file ``path`` among processes; it is created with ``mode``.

    Raises StateError that names the process if another one holds it for longer than ``within_s``.
    """
    # imported here, because readers of files need no lock
    from filelock import FileLock, Timeout

    lock = FileLock(path, mode=mode)
    try:
        lock.acquire(timeout=within_s)
    except Timeout:
        holder = _find_holder(path)
        if holder is None:
            name, remedy = "another process", f"end the process that holds it, which fuser {path} shows"
        else:
            name = f"process {holder}"
            remedy = f"end process {holder}, or let it go on if it is stopped (kill -CONT {holder})"
        raise StateError(
            f"{name} has held {path} for more than {within_s:g} seconds", remedy=f"{remedy}, and try again"
        ) from None
    except OSError:
        with storage_errors(path):
            raise
    try:
        yield
    finally:
        lock.release()


def _find_holder(path: Path) -> int | None:
    """The process that holds a lock file, where the kernel tells it (Linux)."""
    with suppress(OSError, ValueError):
        status = path.stat()
        place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        for line in Path("/proc/locks").read_text("ascii").splitlines():
            # "5: FLOCK  ADVISORY  WRITE 16002 fe:00:2908529 0 EOF"; a line with an arrow is of one that waits
            match line.split():
                case [_, "FLOCK", _, _, process, locked, *_] if locked == place and int(process) > 0:
                    return int(process)
    return None


def check_room(folder: Path) -> None:
    """Write a small file into a folder and remove it; raises OSError where there is no room.

    For failures that do not say so: SQLite reports a quota or a limit of the file size as an I/O error.
    """
    path = folder / f".room.{secrets.token_hex(6)}{TEMPORARY_SUFFIX}"
    try:
        write_file(path, bytes(_ROOM_BYTES), _PRIVATE_FILE)
    finally:
        path.unlink(missing_ok=True)


def is_full(folder: Path) -> bool:
    """Whether a folder takes no more bytes."""
    try:
        check_room(folder)
    except OSError as error:
        return is_no_room(error)
    return False


def is_for_want_of_room(error: sqlite3.Error, folder: Path) -> bool:
    """Whether SQLite failed in ``folder`` since the disk, a quota or the limit of the file size is full."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and is_full(folder))


def is_no_room(error: OSError) -> bool:
    """Whether an error means that the disk, a quota or the file size is at its limit."""
    return error.errno in _NO_ROOM


def refuse_gone(folder: Path) -> None:
    """Raise StateError when a folder that `State.prepare` created at start-up is missing.

    Creating it here would leave an incomplete state folder that other processes take for a complete one.
    """
    if not folder.is_dir():
        raise StateError(
            f"the state folder {folder} is missing",
            remedy="restart this program; it creates the folder again",
        )


OTHERS = 0o077
"""The permission bits of the group and of everybody else."""

_PRIVATE_FOLDER, _PRIVATE_FILE, _FILE = 0o700, 0o600, 0o644


def file_mode(folder: Path) -> int:
    """The mode of a new file in ``folder``: private in a private folder.

    The umask does not protect a state folder: it belongs to the user's other files too.
    """
    return _FILE if folder.stat().st_mode & OTHERS else _PRIVATE_FILE


def make_folder(folder: Path) -> None:
    """Create a folder and the missing ones above it; below a private folder they are private.

    Raises OSError.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent)
    mode = 0o777 if folder.parent.stat().st_mode & OTHERS else _PRIVATE_FOLDER
    folder.mkdir(mode=mode, exist_ok=True)


def touch(path: Path, *, exist_ok: bool = True) -> None:
    """Create an empty file with the mode of its folder, as ``Path.touch``. Raises OSError."""
    path.touch(mode=file_mode(path.parent), exist_ok=exist_ok)


def create_database(path: Path) -> None:
    """Create an empty database with the mode of its folder, which SQLite gives to its -wal and -shm too.

    Where that fails, SQLite says why.
    """
    with suppress(OSError):
        if not path.exists():
            touch(path)


def use_write_ahead_log(connection: sqlite3.Connection, timeout_s: float = _BUSY_TIMEOUT_S) -> None:
    """Switch a database to the write-ahead log; raises sqlite3.Error.

    SQLite refuses the switch at once while another process that has just created the file writes its tables,
    whatever time limit the connection has. Therefore the switch is tried again until ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_BUSY_PAUSE_S)


def list_open_to_others(paths: Iterable[Path]) -> Iterator[Path]:
    """The paths, among these and everything below them, that other users may read, write or enter."""
    for path in paths:
        try:
            mode = path.lstat().st_mode
        except OSError:
            continue
        if stat.S_ISLNK(mode):
            continue
        if mode & OTHERS:
            yield path
        if stat.S_ISDIR(mode):
            with suppress(OSError):
                yield from list_open_to_others(path.iterdir())


def replace_file(path: Path, data: bytes, *, mode: int | None = None, sync: bool = True) -> None:
    """Replace the content of ``path`` with ``data``: temporary file, fsync, rename, fsync of the folder.

    Without ``mode`` the file has that of `file_mode`.
    ``sync=False`` skips the fsync of the folder, for callers that write several files and then call
    ``sync_folder``. Readers see either the old or the new content, also after a power failure. On failure the
    old file is unchanged and the temporary file is removed. Raises OSError.

    The modification time is set explicitly in nanoseconds, because the kernel's own file clock is too coarse
    for readers that detect changes by it.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}{TEMPORARY_SUFFIX}")
    try:
        write_file(temporary, data, file_mode(path.parent) if mode is None else mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Fsync a folder, so that its file names survive a power failure.

    Errors are ignored, because the files are already in place, and some systems cannot fsync a folder.
    """
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_leftovers(folder: Path, name: str = "*") -> None:
    """Remove temporary files of crashed writers: of all files, or of one.

    The caller must hold the lock of the folder, or of that file.
    """
    for leftover in folder.glob(f".{name}.*{TEMPORARY_SUFFIX}"):
        leftover.unlink(missing_ok=True)


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte, however few each call takes. Raises OSError."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def write_file(path: Path, data: bytes, mode: int) -> None:
    """Write a new file and fsync it; `sync_folder` makes its name durable, too. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        write_all(descriptor, data)
        now_ns = time.time_ns()
        os.utime(descriptor, ns=(now_ns, now_ns))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
