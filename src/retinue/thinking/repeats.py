"""Notices that a model makes the same call again and again.

Equal are calls of one function with equal arguments. The third one is not made any more: the model is told
the result. The fifth ends the loop. Calls that gave another result than before, and calls after a new call
that may have changed something, count from the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import orjson

TOLD_AT = 3

ENDS_AT = 5


def call_key(name: str, arguments: Mapping[str, Any] | str) -> str:
    """One key for equal calls; the order of the arguments does not matter."""
    return sha256(orjson.dumps([name, arguments], option=orjson.OPT_SORT_KEYS, default=dict)).hexdigest()


@dataclass(slots=True)
class _Count:
    made: int = 0
    result: str | None = None


@dataclass(slots=True)
class Repeats:
    """How often each call was made since its result last changed."""

    _counts: dict[str, _Count] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)

    def note_call(self, key: str) -> int:
        """Count a call; returns how many equal ones there were with it."""
        count = self._counts.setdefault(key, _Count())
        count.made += 1
        return count.made

    def note_result(self, key: str, result: Any, *, changes: bool) -> None:
        """Note the result of a call that was made. ``changes`` = it may have changed what others give."""
        digest = sha256(orjson.dumps(result, option=orjson.OPT_SORT_KEYS, default=dict)).hexdigest()
        count = self._counts.setdefault(key, _Count(1))
        if count.result not in (None, digest):
            count.made = 1
        count.result = digest
        if changes and key not in self._known:
            self._counts = {key: count}
        self._known.add(key)
