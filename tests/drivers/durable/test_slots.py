"""Slots: no two living processes share one, and a free one tells of a death."""

from __future__ import annotations

from pathlib import Path

from retinue.drivers.durable.slots import take_slot


def test_slots_are_numbered_and_the_lowest_free_one_is_taken(tmp_path: Path) -> None:
    with take_slot(tmp_path) as first:
        host, _, number = first.executor.rpartition("-")
        assert number == "1"
        assert first.free == ()
        with take_slot(tmp_path) as second:
            assert second.executor == f"{host}-2"
        with take_slot(tmp_path) as again:
            assert again.executor == second.executor
    with take_slot(tmp_path) as later:
        assert later.executor == first.executor
        assert later.free == (second.executor,)


def test_folders_have_names_of_their_own(tmp_path: Path) -> None:
    with take_slot(tmp_path / "a") as one, take_slot(tmp_path / "b") as other:
        assert one.executor != other.executor
