"""What a state has kept is forgotten also while its history is off."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.core.errors import StateError
from retinue.mesh.history.records import HistoryStore
from retinue.mesh.history.search_history import SearchHistory
from tests.mesh.history.small_mesh import Mesh


async def test_what_was_kept_before_is_forgotten_while_the_history_is_off(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path)
    mesh.use("routes", "plan_route")
    mesh.find("a taxi", is_wish=True)
    await mesh.history.flush()
    opened: list[HistoryStore] = []

    def find_store() -> HistoryStore:
        opened.append(mesh.store)
        return mesh.store

    off = SearchHistory(mesh._find_skill, mesh._find_named)
    off.stay_off(find_store, "history.keep is false")
    await off.flush()
    await off.read_others()
    assert (off.is_on, off.why_off, opened) == (False, "history.keep is false", [])
    assert [*off.list_records()] == []
    assert await off.forget() == 2
    assert await off.forget() == 0
    mesh.open()
    assert (mesh.verdicts(), mesh.history.wishes.list_all()) == ([], ())
    content = b"".join(path.read_bytes() for path in mesh.folder.iterdir())
    assert b"taxi" not in content


async def test_to_forget_nothing_while_the_history_is_off_makes_no_file(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path)
    off = SearchHistory(mesh._find_skill, mesh._find_named)
    off.stay_off(lambda: mesh.store, "history.keep is false")
    assert await off.forget() == 0
    assert list(mesh.folder.iterdir()) == []


async def test_a_store_that_cannot_be_opened_is_told_to_whoever_wants_it_forgotten(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path)
    (tmp_path / "history.db").mkdir()
    off = SearchHistory(mesh._find_skill, mesh._find_named)
    off.stay_off(lambda: mesh.store, "history.keep is false")
    with pytest.raises(StateError, match=r"history\.db"):
        await off.forget()
