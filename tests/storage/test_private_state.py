"""The state folder belongs to one user: folders 0700 and files 0600, whatever the umask."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import publish_card
from retinue.storage.database import Database
from retinue.storage.files import file_mode, make_folder, replace_file
from retinue.storage.state import State

CARD = b'{"name": "a", "url": "http://127.0.0.1:1", "skills": []}'


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(root: Path) -> dict[str, int]:
    """Folders and files that others may use, with their modes."""
    found = {str(path.relative_to(root)): path.lstat().st_mode & 0o777 for path in root.rglob("*")}
    return {name: mode for name, mode in {".": root.stat().st_mode & 0o777, **found}.items() if mode & 0o077}


def fill(state: State) -> None:
    state.local_token()
    state.mesh_key()
    state.write_hub("http://127.0.0.1:1")
    with state.own():
        database = Database(state.database)
        database.close()
    registry = LayoutRegistry(state.registry)
    created = datetime(2026, 11, 21, tzinfo=UTC)
    asyncio.run(publish_card(registry, "a", CARD, version=None, skills=(), created=created))


def test_everything_in_a_new_state_is_private(tmp_path: Path) -> None:
    state = State(tmp_path / "above" / "state")
    fill(state)
    assert modes(state.root) == {}
    assert list(state.list_open_to_others()) == []


def test_the_files_beside_an_open_database_are_private(tmp_path: Path) -> None:
    state = State(tmp_path / "state")
    state.prepare()
    database = Database(state.database)
    assert (state.root / "retinue.db-wal").exists()
    assert modes(state.root) == {}
    database.close()


def test_a_registry_elsewhere_keeps_the_usual_modes(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o755)
    registry = LayoutRegistry(folder)
    created = datetime(2026, 11, 21, tzinfo=UTC)
    asyncio.run(publish_card(registry, "a", CARD, version=None, skills=(), created=created))
    assert (folder / "agents" / "a" / "index.json").stat().st_mode & 0o777 == 0o644
    assert (folder / "agents").stat().st_mode & 0o777 == 0o755


def test_an_older_state_is_named_and_repaired(tmp_path: Path) -> None:
    state = State(tmp_path / "state")
    fill(state)
    for path in (state.root, *state.root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    names = {path.name for path in state.list_open_to_others()}
    assert {"state", "retinue.db", "local.token", "index.json"} <= names
    assert state.protect() >= len(names)
    assert modes(state.root) == {}
    assert state.protect() == 0


def test_files_of_others_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    state = State(tmp_path)
    tmp_path.chmod(0o755)
    fill(state)
    notes = tmp_path / "notes.txt"
    notes.write_text("shared")
    notes.chmod(0o644)
    state.database.chmod(0o644)
    state.protect()
    assert modes(tmp_path) == {".": 0o755, "notes.txt": 0o644}


def test_the_mode_of_a_new_file_is_that_of_its_folder(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    make_folder(private / "a" / "b")
    assert (private / "a" / "b").stat().st_mode & 0o777 == 0o700
    replace_file(private / "file", b"x")
    assert (private / "file").stat().st_mode & 0o777 == 0o600
    assert file_mode(private) == 0o600
