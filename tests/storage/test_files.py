"""Whole files: the old content or the new, and errors that name the path."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from pathlib import Path

import pytest

from retinue.core.errors import StateError, StorageFullError
from retinue.storage.files import (
    remove_leftovers,
    replace_file,
    storage_errors,
    sync_folder,
    use_write_ahead_log,
)


def test_a_file_is_replaced_and_its_time_changes_each_time(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    times = set()
    for number in range(20):
        replace_file(path, b"%d" % number)
        times.add(path.stat().st_mtime_ns)
    assert path.read_bytes() == b"19"
    assert len(times) == 20
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_the_mode_is_the_asked_one(tmp_path: Path) -> None:
    replace_file(tmp_path / "key", b"secret", mode=0o600)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_a_write_that_comes_in_pieces_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, bytes(data)[:3]))
    replace_file(tmp_path / "a", b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"


@pytest.mark.parametrize("step", ["write", "fsync", "utime"])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def fail(*args: object, **others: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(StorageFullError, match="no space left for") as caught, storage_errors(path):
        replace_file(path, b"new")
    assert caught.value.path == str(path)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a", b"old")]


def test_other_failures_name_the_path_and_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "a"
    with pytest.raises(StateError, match="cannot write") as caught, storage_errors(path):
        replace_file(path, b"x")
    assert str(path) in str(caught.value)
    assert caught.value.remedy


def test_leftovers_of_dead_writers_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".a.00.tmp").write_bytes(b"half")
    (tmp_path / "b.tmp").write_bytes(b"somebody's own")
    remove_leftovers(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["b.tmp"]


def test_a_folder_that_cannot_be_synced_does_not_undo_the_write(
    tmp_path: Path,
) -> None:
    sync_folder(tmp_path / "missing")


def test_a_switch_to_the_write_ahead_log_waits_for_a_process_that_writes_its_tables(tmp_path: Path) -> None:
    writer = sqlite3.connect(tmp_path / "new.db", isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    connection = sqlite3.connect(tmp_path / "new.db")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        use_write_ahead_log(connection, 0.0)
    release = threading.Timer(0.05, writer.execute, ["COMMIT"])
    release.start()
    use_write_ahead_log(connection)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    release.join()
    connection.close()
    writer.close()
