"""The port under which steps keep results for a while, and its in-memory twin."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from retinue.workflows.json_copies import copy_json

KEPT_RESULTS = 100
"""SPEC 3, defaults where the seed is silent: 100 entries, first in, first out."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A result that was kept; JSON values."""

    value: Any


class Cache(Protocol):
    """Keeps results by key; one that is too old is not there. Never raises for what it cannot keep."""

    async def find(self, key: str) -> Kept | None:
        """The result under this key, None when there is none (any more)."""

    async def put(self, key: str, value: Any, ttl_s: float) -> None:
        """Keep a JSON value for ``ttl_s`` seconds; an older one under the key is replaced."""


def cache_key(*facts: Any) -> str:
    """One key of everything that makes a result what it is (SPEC 3, doubt 15); JSON values."""
    return hashlib.sha256(orjson.dumps(facts, option=orjson.OPT_SORT_KEYS)).hexdigest()


class MemoryCache:
    """A Cache of this process; the oldest go first."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, kept: int = KEPT_RESULTS) -> None:
        self._clock = clock
        self._kept = kept
        self._results: dict[str, tuple[float, Any]] = {}

    async def find(self, key: str) -> Kept | None:
        until, value = self._results.get(key, (0.0, None))
        return Kept(copy_json(value, "a kept result")) if until > self._clock() else None

    async def put(self, key: str, value: Any, ttl_s: float) -> None:
        self._results.pop(key, None)
        self._results[key] = (self._clock() + ttl_s, copy_json(value, "a kept result"))
        while len(self._results) > self._kept:
            del self._results[next(iter(self._results))]
