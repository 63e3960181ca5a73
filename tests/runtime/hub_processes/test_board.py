"""What the processes of one hub share in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinue.core.errors import BusyError, InvalidSettingError
from retinue.mesh.admission import LimitSettings, ProcessLimits
from retinue.runtime.hub_processes.board import Board, create_board
from retinue.runtime.hub_processes.parent import count_processes
from retinue.runtime.hub_processes.place import HubPlace, own_names, owner_of, take_place
from retinue.storage.state import State
from retinue.storage.task_store import StoredTask, TaskStore


@pytest.fixture
def boards(tmp_path: Path) -> Iterator[list[Board]]:
    """The board as two processes have it."""
    file = create_board(tmp_path)
    boards = [Board(os.dup(file), 0), Board(file, 1)]
    yield boards
    for board in boards:
        board.close()


def test_the_rate_of_a_caller_holds_over_all_processes(boards: list[Board]) -> None:
    taken = [boards[number % 2].take("token:ci", 0.001, 10) for number in range(12)]
    assert taken[:10] == [0.0] * 10
    assert all(wait_s > 900 for wait_s in taken[10:])
    assert boards[1].take("token:other", 0.001, 10) == 0.0
    assert boards[1].take("jwt:\ud800", 0.001, 10) == 0.0, "a token of another issuer may have any text"


def test_a_burst_is_whole_again_after_a_while(boards: list[Board]) -> None:
    assert [boards[0].take("local", 1_000_000.0, 1) for _ in range(5)] == [0.0] * 5


def test_callers_that_share_a_slot_are_counted_apart(boards: list[Board]) -> None:
    callers = [f"token:{number}" for number in range(2_000)]
    assert [boards[0].take(caller, 0.001, 1) for caller in callers] == [0.0] * len(callers)
    assert all(boards[1].take(caller, 0.001, 1) > 0 for caller in callers)


def test_a_process_gives_way_to_one_that_serves_and_has_fewer_connections(boards: list[Board]) -> None:
    assert not boards[0].is_ahead(5, 2)
    boards[1].note_serving()
    boards[1].note_connections(4)
    assert boards[0].is_ahead(5, 2)
    assert not boards[0].is_ahead(4, 2)
    boards[0].note_ended(1)
    assert not boards[0].is_ahead(5, 2)


def test_a_process_counts_the_chains_that_it_begins(tmp_path: Path) -> None:
    for index, count in ((0, 3), (1, 3), (2, 3), (63, 64)):
        make = own_names(HubPlace(index, count, tmp_path, "hub-1", 0, 0, 0))
        names = {make() for _ in range(20)}
        assert len(names) == 20
        assert {owner_of(name.encode(), count) for name in names} == {index}


def test_a_process_finds_its_place_once(tmp_path: Path) -> None:
    place = HubPlace(1, 2, tmp_path, "hub-1", 7, 8, 9)
    environ = {"RETINUE_HUB_PLACE": place.as_variable()}
    assert take_place(environ) == place
    assert take_place(environ) is None


def test_a_number_of_processes_out_of_range_is_refused() -> None:
    assert count_processes("auto") >= 1
    with pytest.raises(InvalidSettingError, match="1 to 64"):
        count_processes(65)
    with pytest.raises(InvalidSettingError, match="not a number"):
        count_processes("many")


def test_calls_in_flight_are_limited_over_all_processes(boards: list[Board]) -> None:
    settings = LimitSettings(max_in_flight=3)
    first, second = (ProcessLimits(settings, note_in_flight=board.note_in_flight) for board in boards)
    first.admit("a")
    first.admit("a")
    second.admit("a")
    for limits in (first, second):
        with pytest.raises(BusyError):
            limits.admit("a")
    first.release()
    second.admit("a")
    boards[0].note_ended(1)
    first.admit("a")


def test_the_tasks_of_all_processes_are_in_one_file_and_each_ends_its_own(tmp_path: Path) -> None:
    state = State(tmp_path)
    leading, sharing = TaskStore.open(state, "retinue"), TaskStore.share(state, "retinue")
    for store, task_id in ((leading, "a"), (sharing, "b")):
        store.save(StoredTask(task_id, "web", "owner", "context", "working", False, {"id": task_id}))
    assert {task["id"] for task in leading.list_page("web", "owner").tasks} == {"a", "b"}
    assert sharing.end_unfinished(lambda task: ("failed", task), lambda task_id: task_id == "b") == ["b"]
    assert leading.end_unfinished(lambda task: ("failed", task)) == ["a"]
    sharing.close()
    leading.close()
