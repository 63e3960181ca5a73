"""A state folder that can only be read: a hub is refused in one line, and the runs of a copy are listed."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from filelock import FileLock

from retinue.core.errors import StateError
from retinue.runtime.lazy_runs import LazyRuns
from retinue.settings import Settings
from retinue.storage.state import State
from retinue.workflows.durable import database
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.sqlite_connections import is_read_only
from retinue.workflows.runs.ports import RunContext
from retinue.workflows.runs.records import RunRequest


async def run_nothing(context: RunContext, request: RunRequest) -> Any:
    return None


def test_a_hub_on_a_read_only_folder_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(lock: FileLock, timeout: float) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), lock.lock_file)

    monkeypatch.setattr(FileLock, "acquire", refuse)
    with (
        pytest.raises(StateError, match=r"cannot write .*hub\.lock: Read-only file system"),
        State(tmp_path).own(),
    ):
        pass


def test_a_folder_is_read_only_if_nothing_can_be_written_beside_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs.db"
    monkeypatch.setattr(os, "access", lambda place, mode: False)
    assert not is_read_only(path)
    path.touch()
    assert is_read_only(path)


def note(connection: sa.Connection, text: str) -> None:
    connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS notes (text TEXT)")
    connection.exec_driver_sql("INSERT INTO notes VALUES (?)", (text,))


def list_notes(connection: sa.Connection) -> list[str]:
    return [row[0] for row in connection.exec_driver_sql("SELECT text FROM notes")]


@pytest.mark.parametrize("has_journal", [True, False])
async def test_the_runs_of_a_read_only_copy_are_listed_and_not_changed(
    has_journal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, copy = State(tmp_path / "original"), State(tmp_path / "copy")
    original.prepare()
    copy.prepare()
    writer = RunDatabase(f"sqlite:///{original.runs}")
    await writer.prepare()
    await writer.write(note, "kept")
    if has_journal:
        _copy(original, copy)
    writer.close()
    if not has_journal:
        _copy(original, copy)
    before = sorted(path.name for path in copy.root.iterdir())
    monkeypatch.setattr(database, "is_read_only", lambda path: True)
    reader = RunDatabase(f"sqlite:///{copy.runs}")
    await reader.prepare()
    assert await reader.read(list_notes) == ["kept"]
    with pytest.raises(StateError, match="can only be read") as refused:
        await reader.write(note, "more")
    assert "a copy in a folder that can be written" in refused.value.remedy
    reader.close()
    async with LazyRuns(Settings(), copy).open(run_nothing) as runs:
        assert await runs.list_all() == ()
    assert f"{copy.runs.name}.lock" not in before
    assert not copy.runs.with_name(f"{copy.runs.name}.lock").exists()


def _copy(original: State, copy: State) -> None:
    for path in original.root.glob("runs.db*"):
        if not path.name.endswith(".lock"):
            (copy.root / path.name).write_bytes(path.read_bytes())
