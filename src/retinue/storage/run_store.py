"""The place where the workflow runs of a state are stored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from retinue.core.errors import InvalidSettingError
from retinue.storage.runs_file import RunsFile


def check_encoding(encoding: str | None) -> None:
    """Raise InvalidSettingError for a Postgres database whose texts have no encoding.

    ``initdb`` makes such databases under ``LC_ALL=C``. Its texts arrive as bytes.
    """
    if encoding == "SQL_ASCII":
        raise InvalidSettingError(
            "database",
            "the database has the encoding SQL_ASCII",
            remedy="create it with UTF8: createdb --encoding=UTF8 --template=template0 NAME",
        )


@dataclass(frozen=True, slots=True)
class RunStore:
    """The runs in ``database``, the URL of a server, or without one in ``file`` of the state folder."""

    database: str | None
    file: Path

    @property
    def url(self) -> str:
        """The URL of the database."""
        return self.database or f"sqlite:///{self.file}"

    @property
    def place(self) -> str:
        """Where the runs are stored, without user name and password."""
        scheme, mark, rest = (self.database or str(self.file)).partition("://")
        return scheme + mark + rest.rpartition("@")[2]

    def exists(self) -> bool:
        """Whether there may be runs; a configured database counts before anything connects to it."""
        return self.database is not None or self.file.exists()

    def check(self) -> None:
        """Raise StateDamagedError where the runs in the file are damaged or lost; nothing for a server."""
        if self.database is None:
            RunsFile(self.file).check()
