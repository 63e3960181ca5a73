"""Selects the steps of a run for one page: one level of the tree, paged, with large groups folded.

A run has up to a thousand items in one ``foreach``. A folded group has an address of its own, so the page of
a run stays small and can be read, linked to and gone back to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Json = dict[str, Any]

PAGE = 25
"""Steps of one page."""

MAX_UNFOLDED = 12
"""A step with more steps below it is shown folded."""

MAX_ROWS = 75
"""Rows of one page, with the steps below those of the page; beyond that all are folded."""


@dataclass(frozen=True, slots=True)
class ShownStep:
    """One step of a page; ``counts`` is how many steps below it have which status, where it is folded."""

    facts: Json
    depth: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    below: Sequence[ShownStep] = ()

    @property
    def path(self) -> str:
        return str(self.facts["step"])

    @property
    def status(self) -> str:
        """Its status; that of a folded one tells of a failure below it."""
        status = str(self.facts.get("status", ""))
        return "failed" if status == "done" and self.counts.get("failed") else status


@dataclass(frozen=True, slots=True)
class Level:
    """The steps of one page: number ``start`` (from 0) and on, of ``total`` steps below ``within``.

    ``within`` is None for the run itself; ``around`` are the steps around it, outermost first.
    """

    steps: Sequence[ShownStep]
    start: int
    total: int
    counts: Mapping[str, int]
    statuses: Sequence[str] = ()
    """The status of each of the ``total`` steps."""
    within: Json | None = None
    around: Sequence[Json] = ()

    @property
    def is_wide(self) -> bool:
        """Whether its steps are too many to be drawn as boxes: the items of a large ``foreach``."""
        return self.within is not None and self.total > MAX_UNFOLDED

    @property
    def rows(self) -> list[ShownStep]:
        """Each step of the page, before those below it."""
        return list(_iterate(self.steps))

    @property
    def next(self) -> int | None:
        """The start of the next page."""
        return self.start + PAGE if self.start + PAGE < self.total else None

    @property
    def previous(self) -> int | None:
        """The start of the previous page."""
        return max(0, self.start - PAGE) if self.start else None


def make_level(
    steps: Sequence[Json], path: str = "", start: int = 0, *, failed: bool = False
) -> Level | None:
    """The page of the steps below the one with this path, of the run itself for ""; None for an unknown path.

    With ``failed`` it has the failed steps of all depths below it, one after the other.
    """
    around: list[Json] = []
    within: Json | None = None
    while path and (within is None or within["step"] != path):
        group = next((step for step in steps if _is_at(step["step"], path)), None)
        if group is None:
            return None
        if within is not None:
            around.append(within)
        within, steps = group, group.get("steps") or []
    if failed:
        steps = [{**leaf, "steps": []} for leaf in _list_leaves(steps) if leaf.get("status") == "failed"]
    shown = steps[start : start + PAGE]
    room = MAX_ROWS - len(shown)
    placed: list[ShownStep] = []
    for row in shown:
        step = _fold(row, 0, room)
        room -= sum(1 for _ in _iterate(step.below))
        placed.append(step)
    statuses = [_status_within(step) for step in steps]
    return Level(placed, start, len(steps), Counter(statuses), statuses, within, around)


def _is_at(step: str, path: str) -> bool:
    """Whether a step is the one with the path, or around it."""
    return path == step or (path.startswith(step) and path[len(step)] in "./#")


def _list_leaves(steps: Sequence[Json]) -> Iterator[Json]:
    for step in steps:
        below = step.get("steps") or []
        yield from _list_leaves(below)
        if not below or "error" in step:
            yield step


def _fold(step: Json, depth: int, room: int) -> ShownStep:
    """The step with those below it, as far as there is room for rows."""
    below: Sequence[Json] = step.get("steps") or []
    if len(below) > min(MAX_UNFOLDED, room):
        return ShownStep(step, depth, _count(below))
    room -= len(below)
    placed = []
    for child in below:
        inner = _fold(child, depth + 1, room)
        room -= sum(1 for _ in _iterate(inner.below))
        placed.append(inner)
    return ShownStep(step, depth, below=placed)


def _count(steps: Sequence[Json]) -> Mapping[str, int]:
    return Counter(_status_within(step) for step in steps)


def _status_within(step: Json) -> str:
    """The status of a step, "failed" where a step below it failed though it went on."""
    status = str(step.get("status", ""))
    if status == "done" and any(_status_within(child) == "failed" for child in step.get("steps") or []):
        return "failed"
    return status


def _iterate(steps: Sequence[ShownStep]) -> Iterator[ShownStep]:
    for step in steps:
        yield step
        yield from _iterate(step.below)


def unfold(steps: Sequence[Json]) -> list[ShownStep]:
    """All steps with all below them, as those of a definition."""
    return [
        ShownStep(child, below=[replace(inner, depth=1) for inner in unfold(child.get("steps") or [])])
        for child in steps
    ]


def write_counts(counts: Mapping[str, int]) -> str:
    """How many have which status, most first, as "493 done, 5 failed"."""
    rows = sorted(counts.items(), key=lambda row: -row[1])
    return ", ".join(f"{count} {name}" for name, count in rows)
