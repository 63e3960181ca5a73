"""What the processes of one hub share in memory: who serves, their connections, and the rates of callers.

The board is a small file that every process maps. The parent makes it and hands it on. It is in no folder, so
nobody removes it, and a process that is started again has the same one.

A process writes its own row only, and the parent clears the row of one that has ended.
The rates, and the messages that a process has got, are kept under locks of the file, which end with their
holder.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import time
from hashlib import blake2b
from pathlib import Path

MAX_PROCESSES = 64

_ROW_WORDS = 4
"""The process id, its open connections, its calls in flight, and how often its event loop has moved."""

_WORD_BYTES = 8
_SLOTS = 16_384
"""Callers whose rate is known at once; a caller that has not called for a while needs no slot."""

_TRIED_SLOTS = 16
_RATES_AT = MAX_PROCESSES * _ROW_WORDS
_CLAIMS_AT = _RATES_AT + 2 * _SLOTS
_SIZE_BYTES = (_CLAIMS_AT + 2 * _SLOTS) * _WORD_BYTES

CLAIMED_S = 3600
"""How long a message is known by its id, as `FirstAnswers` keeps its answer."""

_INDEX_BITS = 8


def create_board(folder: Path) -> int:
    """The descriptor of a new board, in the file system of ``folder``."""
    with tempfile.TemporaryFile(dir=folder) as file:
        # a page that a full disk has no room for would end the process that writes to it
        file.write(bytes(_SIZE_BYTES))
        file.flush()
        return os.dup(file.fileno())


class Board:
    """The board of the descriptor ``file``; ``index`` is the number of this process, None for the parent.

    ``processes`` is the number of processes of the hub.
    """

    def __init__(self, file: int, index: int | None = None, processes: int = MAX_PROCESSES) -> None:
        self._index = index
        # places that each call needs
        self._own_in_flight = 0 if index is None else _row(index) + 2
        self._others_in_flight = [_row(other) + 2 for other in range(processes) if other != index]
        self._file = file
        os.set_inheritable(file, False)
        self._map = mmap.mmap(self._file, _SIZE_BYTES)
        self._view = memoryview(self._map)
        self._words = self._view.cast("Q")
        self._times = self._view.cast("d")

    def close(self) -> None:
        """Release the board, which stays for the other processes."""
        self._times.release()
        self._words.release()
        self._view.release()
        self._map.close()
        os.close(self._file)

    def note_serving(self) -> None:
        """Record that this process takes connections."""
        self._words[_row(self._own)] = os.getpid()

    def note_ended(self, index: int) -> None:
        """Record that a process takes no connections."""
        for word in range(_ROW_WORDS):
            self._words[_row(index) + word] = 0

    def note_connections(self, count: int) -> None:
        """Record how many connections this process has open."""
        self._words[_row(self._own) + 1] = count

    def note_beat(self) -> None:
        """Record that the event loop of this process moves."""
        self._words[_row(self._own) + 3] += 1

    def count_beats(self, index: int) -> int:
        """A number that grows while the event loop of a process moves."""
        return self._words[_row(index) + 3]

    def note_in_flight(self, count: int) -> int:
        """Record how many calls are in flight in this process; returns those of all others."""
        words = self._words
        words[self._own_in_flight] = count
        others = 0
        for place in self._others_in_flight:
            others += words[place]
        return others

    def find_pid(self, index: int) -> int | None:
        """The process id of a process that serves; None for one that does not."""
        return self._words[_row(index)] or None

    def has_other(self, processes: int) -> bool:
        """Whether another process serves."""
        return any(self._words[_row(index)] for index in range(processes) if index != self._index)

    def is_ahead(self, count: int, processes: int) -> bool:
        """Whether another process that serves has fewer connections than this one with ``count``."""
        words = self._words
        return any(
            words[_row(index)] and words[_row(index) + 1] < count
            for index in range(processes)
            if index != self._index
        )

    def take(self, caller: str, rate_per_s: float, burst: int) -> float:
        """Take one call of a caller; returns 0, or the seconds until one is available.

        All processes together allow ``rate_per_s`` calls on average and bursts of ``burst``. A slot holds
        the time at which the caller's burst is whole again, so one whose time is over is free.
        """
        name = caller.encode("utf-8", "surrogatepass")
        key = int.from_bytes(blake2b(name, digest_size=8).digest()) or 1
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1)
        try:
            now = time.monotonic()
            slot = self._find_slot(key, now)
            place = _RATES_AT + 2 * slot
            whole_at = self._times[place + 1] if self._words[place] == key else now
            whole_at = max(whole_at, now)
            wait_s = whole_at - now - (burst - 1) / rate_per_s
            if wait_s > 0:
                return wait_s
            self._words[place] = key
            self._times[place + 1] = whole_at + 1 / rate_per_s
            return 0.0
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1)

    def claim(self, message: str) -> int:
        """The process that has got this message first and still serves; this one if there is none."""
        key = int.from_bytes(blake2b(message.encode("utf-8", "replace"), digest_size=8).digest()) or 1
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, 1)
        try:
            now = int(time.monotonic())
            tried = [_CLAIMS_AT + 2 * ((key + step) % _SLOTS) for step in range(_TRIED_SLOTS)]
            place = next((slot for slot in tried if self._words[slot] == key), None)
            if place is None:
                place = min(tried, key=lambda slot: self._words[slot + 1])  # free, or the oldest
            else:
                since, index = divmod(self._words[place + 1], 1 << _INDEX_BITS)
                if now - since < CLAIMED_S and self._words[_row(index)]:
                    return index
            self._words[place] = key
            self._words[place + 1] = now << _INDEX_BITS | self._own
            return self._own
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, 1)

    def _find_slot(self, key: int, now: float) -> int:
        """The slot of a caller, else a free one, else the one that is free next."""
        tried = [(key + step) % _SLOTS for step in range(_TRIED_SLOTS)]
        for slot in tried:
            if self._words[_RATES_AT + 2 * slot] == key:
                return slot
        return min(tried, key=lambda slot: max(self._times[_RATES_AT + 2 * slot + 1], now))

    @property
    def _own(self) -> int:
        assert self._index is not None, "the parent has no row"
        return self._index


def _row(index: int) -> int:
    return index * _ROW_WORDS
