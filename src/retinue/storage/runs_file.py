"""Checks that the file ``runs.db`` is intact and has lost no stored run.

SQLite keeps the newest changes in a file of its own (``runs.db-wal``). If that file is removed after a crash,
or ``runs.db`` is emptied, the rest is a valid database without these runs. So the processes that execute runs
count in the database, and keep the last count next to it, in ``runs.db.mark``.
"""

from __future__ import annotations

import secrets
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import orjson

from retinue.core.errors import StateDamagedError, StorageFullError
from retinue.storage.files import is_for_want_of_room, replace_file, storage_errors

TABLE = "retinue_mark"
"""One row: ``id``, made with the database, and ``count``, which only grows."""

THOROUGH_BYTES = 64 * 1024**2
"""The pages of larger files are not read at the start of a process; `check` with ``thorough`` reads them."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The identity of a database, and how far it had counted."""

    id: str
    count: int


def new_mark() -> Mark:
    """The mark of a new database, or of a copy that goes its own way."""
    return Mark(secrets.token_hex(8), 0)


class RunsFile:
    """The SQLite database of the runs at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mark_path = path.with_name(f"{path.name}.mark")

    def check(self, *, thorough: bool = False) -> bool:
        """Raise StateDamagedError where runs are damaged or lost; whether there is a database.

        With ``thorough`` every page is read, of a file up to `THOROUGH_BYTES` also without it.
        """
        known = self.read_mark()
        size = self.path.stat().st_size if self.path.exists() else 0
        if size == 0:
            if known is not None:
                raise self._lost("it is empty" if self.path.exists() else "it is gone")
            return False
        # Looked for first: reading makes an empty one.
        has_newest = self._wal_path.exists() and self._wal_path.stat().st_size > 0
        try:
            mark = self._read(thorough or size <= THOROUGH_BYTES)
        except sqlite3.Error as error:
            if is_for_want_of_room(error, self.path.parent):
                # Reading needs a file next to it, too.
                raise StorageFullError(str(self.path)) from error
            raise self.damaged(str(error)) from error
        if known is None or (mark is not None and mark.id != known.id):
            # Written by an earlier release, or put there from a backup.
            return True
        if mark is None or (mark.count < known.count and not has_newest):
            raise self._lost(f"its newest changes are gone, with {self._wal_path.name}")
        return True

    def read_mark(self) -> Mark | None:
        """The last known state of the database; None if there is none, or it cannot be read."""
        try:
            facts = orjson.loads(self.mark_path.read_bytes())
            return Mark(str(facts["id"]), int(facts["count"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write_mark(self, mark: Mark) -> None:
        """Store the known state of the database; raises StateError."""
        with storage_errors(self.mark_path):
            content = orjson.dumps({"id": mark.id, "count": mark.count})
            replace_file(self.mark_path, content, mode=0o600, sync=False)

    def damaged(self, problem: str) -> StateDamagedError:
        """The error of a database that cannot be read."""
        return StateDamagedError(str(self.path), problem, remedy=self._remedy())

    @property
    def _wal_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}-wal")

    def _lost(self, problem: str) -> StateDamagedError:
        return StateDamagedError(str(self.path), f"{problem}; it held runs", remedy=self._remedy())

    def _remedy(self) -> str:
        return (
            f"stop the hub, then restore {self.path.name} from a backup, "
            f"or move {self.path.name}* away to start without its runs"
        )

    def _read(self, thorough: bool) -> Mark | None:
        with closing(sqlite3.connect(f"file:{quote(str(self.path))}?mode=ro", uri=True, timeout=5)) as db:
            if thorough and (answer := str(db.execute("PRAGMA quick_check(1)").fetchone()[0])) != "ok":
                raise sqlite3.DatabaseError(answer)
            try:
                row = db.execute(f"SELECT id, count FROM {TABLE}").fetchone()  # noqa: S608
            except sqlite3.OperationalError as error:
                if "no such table" not in str(error):
                    raise
                return None
        return None if row is None else Mark(*row)
