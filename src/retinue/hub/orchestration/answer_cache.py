"""Caches answers for a time, and runs concurrent equal requests once (L-33)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from retinue.workflows.definitions.definition import DEFAULT_CACHE_TTL_S

Json = dict[str, Any]

KEPT_ANSWERS = 100
"""Specification 3.3: 100 entries, first in, first out."""

KEPT_BYTES = 16 * 1024 * 1024
"""All kept answers together; a larger one is not kept, and older ones make room."""


class AnswerCache:
    """Answers by key, first in, first out, in memory; an answer is kept as JSON, never shared."""

    def __init__(
        self,
        *,
        ttl_s: float = DEFAULT_CACHE_TTL_S,
        entries: int = KEPT_ANSWERS,
        size_bytes: int = KEPT_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ttl_s = ttl_s
        self._entries = entries
        self._size_bytes = size_bytes
        self._clock = clock
        self._kept: dict[str, tuple[float, bytes]] = {}
        self._used_bytes = 0

    def find(self, key: str) -> Json | None:
        """The answer under this key; None where there is none, or an outdated one."""
        until, answer = self._kept.get(key, (0.0, b""))
        if until <= self._clock():
            self._drop(key)
            return None
        kept: Json = orjson.loads(answer)
        return kept

    def put(self, key: str, answer: Mapping[str, Any]) -> None:
        """Keep an answer instead of an earlier one under the key."""
        self._drop(key)
        content = orjson.dumps(answer)
        if len(content) > self._size_bytes:
            return
        self._kept[key] = (self._clock() + self._ttl_s, content)
        self._used_bytes += len(content)
        while len(self._kept) > self._entries or self._used_bytes > self._size_bytes:
            self._drop(next(iter(self._kept)))

    def clear(self) -> int:
        """Forget all answers; returns their number."""
        count = len(self._kept)
        self._kept.clear()
        self._used_bytes = 0
        return count

    def _drop(self, key: str) -> None:
        _, content = self._kept.pop(key, (0.0, b""))
        self._used_bytes -= len(content)
