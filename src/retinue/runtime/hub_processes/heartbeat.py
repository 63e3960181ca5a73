"""Shows which processes of a hub are frozen: each moves a number on the board, at which the parent looks.

A frozen process keeps its connections, and the requests to it wait, so the parent kills it. The parent counts
its own looks and no time: while the machine sleeps or is too busy, and while the parent itself is stopped, it
does not look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from retinue.runtime.hub_processes.board import Board

BEAT_S = 1.0
"""Between two beats of a process, and between two looks of the parent."""

FROZEN_LOOKS = 30
"""A process that has not moved for so many looks is frozen. A busy disk may stop one for seconds."""

RELEASED_LOOKS = 5
"""The looks that are left to the others when one is killed, because they may have waited for a lock of it."""


async def beat(board: Board) -> None:
    """Show that the event loop of this process moves, until cancelled."""
    while True:
        board.note_beat()
        await asyncio.sleep(BEAT_S)


class FrozenWatch:
    """Finds the processes that do not move any more; `look` is called once in `BEAT_S`."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._beats: dict[int, int] = {}
        self._quiet: dict[int, int] = {}

    def look(self, running: Collection[int]) -> int | None:
        """The number of a process that is frozen; None if none of those in ``running`` is.

        At most one at a time, the one that has been quiet for longest.
        """
        for index in [*self._quiet]:
            if index not in running:
                del self._quiet[index], self._beats[index]
        for index in running:
            beats = self._board.count_beats(index)
            self._quiet[index] = self._quiet[index] + 1 if beats == self._beats.get(index) else 0
            self._beats[index] = beats
        longest = max(self._quiet, key=self._quiet.__getitem__, default=None)
        if longest is None or self._quiet[longest] < FROZEN_LOOKS:
            return None
        for index, looks in self._quiet.items():
            self._quiet[index] = min(looks, FROZEN_LOOKS - RELEASED_LOOKS)
        self._quiet[longest] = 0
        return longest
