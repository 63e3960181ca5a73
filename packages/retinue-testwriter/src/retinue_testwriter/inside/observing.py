"""Observes calls: the branches taken, the shape of the outcome, and the choice of examples.

Standard library only.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

KINDS = ("ok", "documented", "surprise", "slow", "refused")
SAME_RESULT_CAP = 4
TELLING_LENGTH = 40


class Watcher:
    """Records steps from line to line in one source file and the other files of its package."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._folder = str(Path(source).parent) if source.endswith("__init__.py") else ""
        self._arcs: set[Any] = set()

    def start(self) -> None:
        self._arcs = set()
        if self._source:
            sys.settrace(self._enter)

    def stop(self) -> None:
        sys.settrace(None)

    def take(self) -> frozenset[Any]:
        return frozenset(self._arcs)

    def _enter(self, frame: Any, _event: str, _argument: Any) -> Any:
        file = frame.f_code.co_filename
        if file != self._source and not (self._folder and file.startswith(self._folder)):
            return None
        before = frame.f_lineno

        def step(frame: Any, event: str, _argument: Any) -> Any:
            nonlocal before
            if event == "line":
                self._arcs.add((before, frame.f_lineno))
                before = frame.f_lineno
            elif event in ("return", "exception"):
                self._arcs.add((before, event))
            return step

        return step


def describe_outcome(case: Any, was_watched: bool) -> frozenset[Any]:
    """Coarse features of an outcome; sizes only for code whose lines cannot be watched."""
    if case.kind != "ok":
        return frozenset({("raised", type(case.error).__name__)})
    result = case.result
    features: set[tuple[str, object]] = {("type", type(result).__name__)}
    if was_watched:
        if isinstance(result, bool) or result is None:
            features.add(("value", result))
    elif isinstance(result, (str, bytes, list, tuple, dict, set, frozenset)):
        features.add(("length", min(len(result), 8)))
    elif isinstance(result, (int, float)) and not isinstance(result, bool):
        features.add(("sign", (result > 0) - (result < 0)))
    elif isinstance(result, bool):
        features.add(("truth", result))
    return frozenset(features)


def pick(cases: list[Any], count: int, by_result: bool = True) -> list[Any]:
    """Cases that together show most features: first those that add one (simple ones first), then a spread.

    ``by_result``: the spread is over different results, at most a few of each.
    """
    ordered = sorted(cases, key=simplicity)
    picked: list[Any] = []
    reached: set[Any] = set()
    for case in ordered:
        if case.features - reached:
            picked.append(case)
            reached |= case.features
        if len(picked) >= count:
            return picked
    counts: dict[str, int] = {}
    rest = []
    for case in ordered:
        shown = repr(case.result)[:300] if by_result else str(case.sources)
        counts[shown] = counts.get(shown, 0) + 1
        if case.kind == "ok" and case not in picked and counts[shown] <= SAME_RESULT_CAP:
            rest.append((counts[shown], case))
    rest = [case for _number, case in sorted(rest, key=lambda pair: dullness(pair[1], pair[0]))]
    return picked + rest[: max(0, count - len(picked))]


def dullness(case: Any, seen: int) -> tuple[Any, ...]:
    """Sort key for informative examples: the result differs from the argument and is of medium length."""
    echoes = any(type(v) is type(case.result) and equal(v, case.result) for v in case.values.values())
    return simplicity(case)[0], seen, echoes, abs(len(str(case.sources)) - TELLING_LENGTH)


def simplicity(case: Any) -> tuple[bool, int]:
    """Sort key for readable examples."""
    shown = str(case.sources)
    return not (shown.isascii() and "\\x" not in shown), len(shown)


def equal(value: Any, other: Any) -> bool:
    try:
        return bool(value == other)
    except Exception:  # noqa: BLE001  (an __eq__ under probe may refuse in any way)
        return False


def same(value: Any, other: Any) -> bool:
    return equal(value, other) or (type(value) is type(other) and repr(value) == repr(other))


def is_plain(value: Any) -> bool:
    return isinstance(value, (int, float, str, bytes, bool, list, tuple, dict, set, frozenset, type(None)))


def is_inexact(value: Any) -> bool:
    """A float, or a flat collection with one: compared with a tolerance."""
    if isinstance(value, float):
        return True
    parts = value if type(value) in (list, tuple) else list(value.values()) if type(value) is dict else []
    numbers = all(type(part) in (int, float) for part in parts)
    return numbers and any(isinstance(part, float) for part in parts)
