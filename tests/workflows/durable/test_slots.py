"""Slots: no two living processes share one, and a free one tells of a death."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.core.errors import StateError
from retinue.workflows.durable.nodes import take_slot


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


def test_a_state_folder_that_was_removed_is_not_made_anew(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with pytest.raises(StateError, match="state is missing") as caught, take_slot(state / "nodes"):
        pass
    assert "restart this program" in caught.value.remedy
    assert not state.exists()


def test_a_folder_that_cannot_be_made_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "nodes").touch()
    with pytest.raises(StateError, match="nodes"), take_slot(tmp_path / "nodes"):
        pass
