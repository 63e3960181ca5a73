"""Which processes of a hub are frozen."""

from __future__ import annotations

import os
from pathlib import Path

from retinue.runtime.hub_processes.board import Board, create_board
from retinue.runtime.hub_processes.heartbeat import FROZEN_LOOKS, RELEASED_LOOKS, FrozenWatch
from retinue.runtime.hub_processes.parent import KeptProcesses
from retinue.runtime.serving import Stop
from retinue.runtime.supervisor import ChildSpec
from retinue.settings import environment


def _make_boards(folder: Path, processes: int) -> tuple[Board, list[Board]]:
    """The board as its parent has it, and as its processes have it."""
    file = create_board(folder)
    return Board(file), [Board(os.dup(file), index, processes) for index in range(processes)]


def test_a_process_is_frozen_when_it_has_not_moved_for_thirty_looks_of_its_parent(tmp_path: Path) -> None:
    parent, (moves, stands) = _make_boards(tmp_path, 2)
    watch = FrozenWatch(parent)
    stands.note_beat()
    for _ in range(FROZEN_LOOKS):
        moves.note_beat()
        assert watch.look({0, 1}) is None
    assert watch.look({0, 1}) == 1
    stands.note_beat()
    for _ in range(FROZEN_LOOKS):
        moves.note_beat()
        assert watch.look({0, 1}) is None
    for board in (parent, moves, stands):
        board.close()


def test_a_process_that_starts_is_not_counted(tmp_path: Path) -> None:
    parent, boards = _make_boards(tmp_path, 1)
    watch = FrozenWatch(parent)
    for _ in range(3):
        assert [watch.look({0}) for _ in range(FROZEN_LOOKS)] == [None] * FROZEN_LOOKS
        assert watch.look(()) is None
    for board in (parent, *boards):
        board.close()


def test_processes_that_wait_for_a_frozen_one_are_left_time_to_go_on(tmp_path: Path) -> None:
    parent, boards = _make_boards(tmp_path, 3)
    watch = FrozenWatch(parent)
    watch.look({0, 1, 2})
    for number, board in enumerate(boards):
        for _ in range(2 * (number != 1)):  # process 1 stops first
            board.note_beat()
            assert watch.look({0, 1, 2}) is None
    found = [watch.look({0, 1, 2}) for _ in range(FROZEN_LOOKS - 2)]
    killed = [index for index in found if index is not None]
    assert killed == [1]
    parent.note_ended(1)
    for index in (0, 2):
        boards[index].note_beat()
    again = [watch.look({0, 2}) for _ in range(RELEASED_LOOKS + 1)]
    assert again == [None] * len(again)
    for board in (parent, *boards):
        board.close()


async def test_a_process_that_has_served_and_ends_before_it_is_ready_serves_no_more(tmp_path: Path) -> None:
    parent, (leader, other) = _make_boards(tmp_path, 2)
    lines: list[str] = []
    processes = KeptProcesses(parent, Stop(), lines.append)
    other.note_serving()
    assert leader.find_pid(1) is not None
    spec = ChildSpec("hub process 1", ("--version",), environment(), first_back_off_s=60.0)
    await processes.supervisor.start([spec])
    assert "ended with code 0" in lines[0]
    assert leader.find_pid(1) is None
    await processes.supervisor.stop()
    for board in (parent, leader, other):
        board.close()
