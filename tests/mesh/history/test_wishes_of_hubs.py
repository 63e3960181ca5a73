"""Hubs on one database have the same wishes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from retinue.core.call import Principal
from retinue.core.errors import StateError
from retinue.mesh.history import wishes as wishes_module
from retinue.mesh.history.records import Wish
from retinue.mesh.history.wishes import WishBook
from tests.mesh.history.small_mesh import ANNA, BEN, MESH, Mesh


def open_hubs(folder: Path) -> tuple[Mesh, Mesh]:
    """Two hubs that share a store."""
    return Mesh(folder), Mesh(folder)


async def sync(*hubs: Mesh) -> None:
    for hub in hubs:
        await hub.history.flush()
    for hub in hubs:
        await hub.history.read_others()


def texts(mesh: Mesh) -> list[str]:
    return [wish.text for wish in mesh.history.wishes.list_all()]


async def test_a_hub_lists_the_wishes_of_another_one_and_no_longer_those_that_came_true_there(
    tmp_path: Path,
) -> None:
    first, second = open_hubs(tmp_path)
    first.find("a taxi", is_wish=True)
    second.now += 1
    second.find("a note of the moon", BEN, is_wish=True)
    second.now += 1
    first.now = second.now + 1
    first.find("a boat", is_wish=True)
    await sync(first, second)
    assert texts(first) == texts(second) == ["a taxi", "a note of the moon", "a boat"]
    second.end("notes", "add_note", BEN)
    await sync(second, first)
    assert texts(first) == texts(second) == ["a taxi", "a boat"]
    await first.history.forget()
    await sync(first, second)
    assert (texts(first), texts(second), second.store.read_wishes()) == ([], [], [])


async def test_a_wish_that_is_repeated_at_another_hub_is_one(tmp_path: Path) -> None:
    first, second = open_hubs(tmp_path)
    first.find("a taxi", is_wish=True)
    second.now += 5
    second.find("a taxi", is_wish=True)
    second.find("a taxi", BEN, is_wish=True)
    await sync(first, second)
    await sync(first, second)
    assert texts(first) == texts(second) == ["a taxi", "a taxi"]
    assert {wish.at for wish in first.store.read_wishes()} == {second.now}


async def test_wishes_that_were_noted_while_the_database_was_away_reach_the_other_hub(
    tmp_path: Path,
) -> None:
    first, second = open_hubs(tmp_path)
    first.find("a taxi", is_wish=True)
    second.now += 10_000
    await second.history.read_others()
    await first.history.flush()
    second.now += 10_000
    await second.history.read_others()
    assert texts(second) == ["a taxi"]


async def test_what_is_written_after_another_hub_forgot_everything_does_not_come_back(tmp_path: Path) -> None:
    first, second = open_hubs(tmp_path)
    first.find("a taxi", is_wish=True)
    second.now += 1
    await second.history.forget()
    second.store.forget(second.now)
    first.store.write_wishes([Wish("late", first.now, (1,), 2, "a boat")], [])
    first.store.forget(second.now - 0.5)
    first.store.write_wishes([Wish("late", first.now, (1,), 2, "a boat")], [])
    await sync(second)
    await sync(second)
    assert texts(second) == []
    assert second.store.read_wishes() == []


async def test_a_hub_keeps_no_words_of_another_one_unless_its_owner_permits_it(tmp_path: Path) -> None:
    first = Mesh(tmp_path)
    second, third = Mesh(tmp_path, wishes="count"), Mesh(tmp_path, wishes="off")
    first.find("a taxi", is_wish=True)
    await sync(first, third)
    assert texts(third) == []
    assert len(first.store.read_wishes()) == 1, "a hub that keeps no wishes removes none of others"
    await sync(first, second)
    assert texts(second) == [""]
    await second.history.flush()
    assert [wish.text for wish in first.store.read_wishes()] == [""]


def test_the_wishes_of_many_hubs_are_bounded_as_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wishes_module, "MAX_WISHES", 20)
    monkeypatch.setattr(wishes_module, "MAX_PER_CALLER", 8)
    book = WishBook()
    book.open((), "count")
    book.note("own", 50.0, (7, 8), 2, "")
    flood = [Wish(f"f{number:02}", float(number), (number,), 4, "") for number in range(40)]
    others = [Wish(f"o{number:02}", 100.0 + number, (number,), 6 + 4 * number, "") for number in range(40)]
    book.read_others([*flood, *others], 0.0)
    assert [wish.id for wish in book.list_all()] == [f"o{number:02}" for number in range(20, 40)]
    _, dropped = book.take_changes()
    assert {"own", "f00", "f39", "o19"} <= dropped
    book.read_others(flood, 0.0)
    assert [wish.id for wish in book.list_all()] == [f"f{number}" for number in range(32, 40)]


async def test_a_database_that_does_not_answer_at_the_start_loses_no_later_wish(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path)
    mesh.find("a taxi", is_wish=True)
    await mesh.history.flush()
    path = tmp_path / "history.db"
    path.rename(tmp_path / "aside")
    path.mkdir()
    with pytest.raises(StateError, match=r"history\.db"):
        mesh.open()
    mesh.find("a boat", Principal("token:carl", "token", MESH), is_wish=True)
    path.rmdir()
    (tmp_path / "aside").rename(path)
    await sync(mesh)
    assert sorted(texts(mesh)) == ["a boat", "a taxi"]
    assert len(mesh.store.read_wishes()) == 2


async def test_what_happens_while_the_wishes_of_others_are_read_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = open_hubs(tmp_path)
    first.find("a note of the moon", is_wish=True)
    await first.history.flush()
    loop, read_wishes = asyncio.get_running_loop(), first.store.read_wishes

    def go_on() -> None:
        first.end("notes", "add_note", ANNA)
        first.find("a boat", BEN, is_wish=True)

    def read_while_calls_end() -> object:
        wishes = read_wishes()
        loop.call_soon_threadsafe(go_on)
        return wishes

    monkeypatch.setattr(first.store, "read_wishes", read_while_calls_end)
    await first.history.read_others()
    await asyncio.sleep(0)
    monkeypatch.undo()
    assert texts(first) == ["a boat"]
    await sync(first, second)
    assert texts(first) == texts(second) == ["a boat"]
