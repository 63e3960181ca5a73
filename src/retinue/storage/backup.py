"""Copies a state folder while its hub runs; only the owner can read the copy.

Databases are copied by SQLite's backup, which gives one consistent moment. Of each image layout of the
registry the index is copied first, because the content that it names was written before it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from retinue.core.errors import InvalidSettingError, StateDamagedError, StateError, StorageFullError
from retinue.storage.files import TEMPORARY_SUFFIX, is_for_want_of_room, storage_errors
from retinue.storage.runs_file import TABLE as MARK_TABLE
from retinue.storage.runs_file import new_mark
from retinue.storage.state import OUTCOMES, State

_LEFT_OUT = frozenset(
    {"browser-sessions.json", "home", "hub-leader.lock", "hub.json", "hub.lock", "nodes", OUTCOMES}
    | {"team-environments"}
)
"""Files of the running processes of this state, sessions of browsers, and caches.

A copy is a state with processes of its own.
"""

_INDEX = "index.json"
_ATTEMPTS = 5
"""How often a layout is copied whose content is removed meanwhile."""

_COPY_BYTES = 1024 * 1024
_PAGES = 1_000
"""Database pages that are copied before writers get their turn."""


def back_up(state: State, target: Path, settings_file: Path | None = None) -> list[str]:
    """Copy the state, and ``settings_file`` if given, into the empty folder ``target``; returns the names.

    The folder is created with mode 0700, and all that is in it with 0700 and 0600. Raises
    InvalidSettingError for a folder that is not empty, StateDamagedError for a damaged database, and
    StorageFullError and StateError where the copy cannot be written; then nothing of it remains.
    """
    if not state.root.is_dir():
        raise StateError(f"there is no state folder {state.root}", remedy="set RETINUE_HOME")
    if target.is_relative_to(state.root):
        raise InvalidSettingError("DIR", f"{target} is in the state folder", remedy="name another folder")
    with storage_errors(target), _nothing_left_of_a_failure(target):
        names = sorted(path.name for path in state.root.iterdir() if _belongs(path))
        for name in names:
            source, place = state.root / name, target / name
            if source in (state.database, state.runs, state.artifacts, state.history):
                _copy_database(source, place)
            elif source == state.tasks:
                _make_folder(place)
                for file in source.glob("*.db"):
                    _copy_database(file, place / file.name)
            elif source == state.registry:
                _make_folder(place)
                for layout in _list_layouts(source):
                    _copy_layout(layout, place / layout.relative_to(source))
            elif source.is_dir():
                _copy_folder(source, place)
            else:
                _copy_file(source, place)
        if state.runs.name in names:
            _rename_runs(target / state.runs.name)
        if settings_file is not None:
            _copy_file(settings_file, target / settings_file.name)
            names.append(settings_file.name)
    return names


@contextmanager
def _nothing_left_of_a_failure(target: Path) -> Iterator[None]:
    is_new = not target.exists()
    _make_empty(target)
    try:
        yield
    except BaseException:
        for path in [target] if is_new else list(target.iterdir()):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        raise


def _make_empty(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        problem = "is not empty" if target.is_dir() else "is not a folder"
        raise InvalidSettingError("DIR", f"{target} {problem}", remedy="name a new or an empty folder")
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    target.chmod(0o700)


def _belongs(path: Path) -> bool:
    """Whether a file of the state belongs into a copy: no lock, no temporary file, no part of a database."""
    is_part = path.name.endswith(("-wal", "-shm", "-journal", ".lock", ".mark", TEMPORARY_SUFFIX))
    return not is_part and path.name not in _LEFT_OUT


def _copy_database(source: Path, target: Path) -> None:
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    name = f"file:{quote(str(source))}?mode=ro"
    try:
        with (
            closing(sqlite3.connect(name, uri=True, timeout=30)) as live,
            closing(sqlite3.connect(target)) as copy,
        ):
            live.backup(copy, pages=_PAGES, sleep=0.01)
            # One file, without a separate log.
            copy.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        for place in (target, source):  # reading writes as well: a file next to the database
            if is_for_want_of_room(error, place.parent):
                raise StorageFullError(str(place)) from error
        raise StateDamagedError(str(source), str(error), remedy="see: retinue doctor") from error


def _rename_runs(path: Path) -> None:
    """Give the copy another mark, because a restored copy is not a database that has lost runs."""
    with closing(sqlite3.connect(path)) as copy, copy:
        if copy.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (MARK_TABLE,)).fetchone():
            mark = new_mark()
            copy.execute(f"UPDATE {MARK_TABLE} SET id = ?, count = ?", (mark.id, mark.count))  # noqa: S608


def _list_layouts(registry: Path) -> Iterator[Path]:
    """The folders of a registry that hold an index, each a repository."""
    yield from sorted(index.parent for index in registry.rglob(_INDEX))


def _copy_layout(source: Path, target: Path) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _make_folder(target)
            _copy_file(source / _INDEX, target / _INDEX)
            _copy_folder(source, target, but=_INDEX)
        except FileNotFoundError:
            # Withdrawn while it was copied: all of it, or one tag.
            shutil.rmtree(target, ignore_errors=True)
            if not (source / _INDEX).exists():
                return
            if attempt == _ATTEMPTS:
                raise
        else:
            return


def _copy_folder(source: Path, target: Path, *, but: str = "") -> None:
    _make_folder(target)
    for path in sorted(source.iterdir()):
        if path.name == but or not _belongs(path):
            continue
        if path.is_dir():
            # A repository below another one is copied by itself.
            if not (path / _INDEX).exists() or not but:
                _copy_folder(path, target / path.name, but=but)
        elif path.is_file():
            _copy_file(path, target / path.name)


def _make_folder(path: Path) -> None:
    # pathlib gives the mode to the last folder only.
    if not path.parent.exists():
        _make_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)


def _copy_file(source: Path, target: Path) -> None:
    with (
        source.open("rb") as content,
        os.fdopen(os.open(target, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as copy,
    ):
        # in pieces: an artifact may be larger than the memory
        shutil.copyfileobj(content, copy, _COPY_BYTES)
        copy.flush()
        os.fsync(copy.fileno())
