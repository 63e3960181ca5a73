"""Remembers the answer to each message id, so that a repeated message gets it and starts no new work.

A sender that does not know whether its message arrived sends it again with the same id. The key of an entry
names the sender; the content of the message must be equal, because ids of careless senders repeat.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Generic, TypeVar

import orjson

KEPT_S = 3600.0
KEPT_COUNT = 1_000
KEPT_BYTES = 16 * 1024 * 1024

T = TypeVar("T")


@dataclass(slots=True)
class _Entry(Generic[T]):
    content: bytes
    began: T
    at: float
    size_bytes: int = 0


class FirstAnswers(Generic[T]):
    """The work that messages began, by a key that names sender, receiver and message id.

    Bounded in time, number and bytes; the oldest entries go first.
    """

    def __init__(
        self,
        *,
        kept_s: float = KEPT_S,
        count: int = KEPT_COUNT,
        size_bytes: int = KEPT_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kept_s = kept_s
        self._count = count
        self._limit_bytes = size_bytes
        self._clock = clock
        self._used_bytes = 0
        self._entries: OrderedDict[tuple[str, ...], _Entry[T]] = OrderedDict()

    def find(self, key: tuple[str, ...], content: bytes) -> T | None:
        """The work that the first message of this key and content began; None if there was none."""
        self._drop_old()
        entry = self._entries.get(key)
        return None if entry is None or entry.content != content else entry.began

    def put(self, key: tuple[str, ...], content: bytes, began: T) -> None:
        """Remember what a message has begun, in place of an earlier one of this key."""
        self._remove(key)
        self._entries[key] = _Entry(content, began, self._clock())
        self._drop_old()

    def end(self, key: tuple[str, ...], began: T, *, size_bytes: int) -> None:
        """The work of a message has ended with a result of this size, which is kept."""
        entry = self._entries.get(key)
        if entry is not None and entry.began is began:
            self._used_bytes += size_bytes - entry.size_bytes
            entry.size_bytes = size_bytes
            self._drop_old()

    def forget(self, key: tuple[str, ...], began: T) -> None:
        """Let the next message of this key start new work."""
        entry = self._entries.get(key)
        if entry is not None and entry.began is began:
            self._remove(key)

    def _remove(self, key: tuple[str, ...]) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._used_bytes -= entry.size_bytes

    def _drop_old(self) -> None:
        oldest = self._clock() - self._kept_s
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            is_over = len(self._entries) > self._count or self._used_bytes > self._limit_bytes
            if not is_over and entry.at >= oldest:
                return
            self._remove(key)


def digest_content(content: Any) -> bytes:
    """A digest of JSON values, by which equal messages are known."""
    options = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
    return sha256(orjson.dumps(content, default=repr, option=options)).digest()
