"""Edits configuration files of other programs: reads whole files, backs them up, replaces them atomically.

A file has one backup at most, `FILE.TIME.bak`, readable for its owner only, because it may hold a token.
Another program may write them at the same time: immediately before replacing a file, its content is
compared with what was read, and the edit is repeated if it differs.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from retinue.core.errors import InvalidSettingError, StateError
from retinue.storage.files import replace_file, storage_errors

if sys.platform != "win32":
    import fcntl

MAX_BYTES = 64 * 1024 * 1024
PRIVATE = 0o600
_TRIES = 5
_BACKUP = re.compile(r"\d{8}T\d{6}\.\d{6}Z\.bak")
"""The end of the name of a backup of this program."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The outcome of an edit; ``backup`` is the file with the former content, if there is one."""

    path: Path
    changed: bool
    backup: Path | None = None


def find_file(candidates: tuple[Path, ...]) -> Path:
    """The first candidate (``*`` matches any name) that exists, or whose folder does; else the last."""
    for candidate in candidates[:-1]:
        anchor = Path(candidate.anchor)
        folders = sorted(anchor.glob(str(candidate.parent.relative_to(anchor))))
        files = [folder / candidate.name for folder in folders]
        if files:
            return next((file for file in files if file.exists()), files[0])
    return candidates[-1]


def read_text(path: Path) -> str | None:
    """The file's text with its byte-order mark and line ends; None if there is no file.

    Raises InvalidSettingError if it is not UTF-8, StateError if it cannot be read.
    """
    data = _read(path)
    return None if data is None else _decode(data, path)


def change_text(
    path: Path, edit: Callable[[str | None], str | None], *, secret: bool, backup: bool = True
) -> Changed:
    """Replace the file's text by ``edit(text)``; None means no file, before and after.

    With ``backup`` the former text is kept in place of an earlier backup.

    Follows symbolic links, creates missing folders and keeps the file's mode; with ``secret`` the mode
    becomes 0600. Raises StateError if the file is read-only, cannot be written or keeps changing. If
    ``edit`` raises, the file is unchanged.
    """
    target = _follow(path)
    for _ in range(_TRIES):
        with _alone(target.parent):
            changed = _try_change(path, target, edit, secret=secret, backup=backup)
        if changed is not None:
            return changed
    raise StateError(f"{path} keeps changing", remedy="close the program that writes it, then try again")


def check_writable(path: Path) -> None:
    """Raise StateError if `change_text` could not write the file."""
    target = _follow(path)
    folder = target.parent
    while not folder.exists():
        folder = folder.parent
    _read(target)
    if (target.exists() and not os.access(target, os.W_OK)) or not os.access(folder, os.W_OK):
        raise StateError(f"{path} is read-only", remedy="change it where it comes from: --print shows what")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other commands of this program from editing in ``folder``; leaves no file behind.

    Where folders cannot be locked (Windows, some network file systems), the comparison before the write
    remains.
    """
    if sys.platform == "win32" or not folder.is_dir():
        yield
        return
    with storage_errors(folder):
        number = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def _try_change(
    path: Path, target: Path, edit: Callable[[str | None], str | None], *, secret: bool, backup: bool
) -> Changed | None:
    """One attempt of `change_text`; None if the file changed meanwhile."""
    before = _read(target)
    text = None if before is None else _decode(before, path)
    edited = edit(text)
    if edited == text:
        with storage_errors(path):
            if secret and target.stat().st_mode & 0o077:
                target.chmod(PRIVATE)
        return Changed(path, changed=False)
    data = None if edited is None else _encode(edited, path)
    if before is not None and not os.access(target, os.W_OK):
        raise StateError(f"{path} is read-only", remedy="change it where it comes from: --print shows what")
    with storage_errors(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = None if before is None else target.stat().st_mode & 0o777
        kept = _keep(target, before) if backup and before is not None else None
        if _read(target) != before:
            return None
        if data is None:
            target.unlink(missing_ok=True)
        else:
            replace_file(target, data, mode=PRIVATE if secret or mode is not None else 0o644)
            if mode is not None and not secret:
                target.chmod(mode)
    return Changed(path, changed=True, backup=kept)


def read_backups(path: Path) -> list[str]:
    """The texts of a file's backups, newest first, without unreadable ones."""
    places = []
    for backup in sorted(_list_backups(_follow(path)), reverse=True):
        try:
            places.append(backup.read_bytes().decode())
        except (OSError, UnicodeDecodeError):
            continue
    return places


def drop_backups(path: Path) -> None:
    """Delete the file's backups."""
    for backup in _list_backups(_follow(path)):
        with storage_errors(backup):
            backup.unlink(missing_ok=True)


def _follow(path: Path) -> Path:
    """The target of a symbolic link, which need not exist."""
    try:
        return path.resolve()
    except RuntimeError:
        raise StateError(f"{path} is a link that leads to itself", remedy="remove it") from None


def _list_backups(target: Path) -> list[Path]:
    prefix = f"{target.name}."
    return [
        file
        for file in target.parent.glob("*.bak")
        if file.name.startswith(prefix) and _BACKUP.fullmatch(file.name.removeprefix(prefix))
    ]


def _keep(target: Path, data: bytes) -> Path:
    """Copy the file into its folder with mode 0600, in place of earlier copies, and return the copy."""
    earlier = _list_backups(target)
    same = [file for file in earlier if file.stat().st_size == len(data) and file.read_bytes() == data]
    if same:
        kept = same[0]
    else:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        kept = target.with_name(f"{target.name}.{stamp}.bak")
        replace_file(kept, data, mode=PRIVATE)
    for file in earlier:
        if file != kept:
            file.unlink(missing_ok=True)
    return kept


def _read(path: Path) -> bytes | None:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) and not path.is_dir():
            # reading a pipe or a device might never end
            raise InvalidSettingError(str(path), "is not a file", remedy="see whether it is the right one")
        if status.st_size > MAX_BYTES:
            raise InvalidSettingError(str(path), "is over 64 MiB", remedy="see whether it is the right file")
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(
            f"cannot read {path}: {error.strerror or error}", remedy="check its owner and mode"
        ) from error


def _decode(data: bytes, path: Path) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidSettingError(
            str(path), f"no UTF-8 in line {line}", remedy="save it as UTF-8; nothing was changed"
        ) from None


def _encode(text: str, path: Path) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidSettingError(
            str(path), "a path in the entry is no text", remedy="move Retinue to folders with names in UTF-8"
        ) from None
