"""The names of the steps of one run: stable, unique, and allowed in paths."""

from __future__ import annotations

import re

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST_NAME = 56


class StepNames:
    """Gives each step its name; repeated ones are numbered in the order of the code: ``review-2``."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._last: dict[str, int] = {}

    def take(self, wanted: str) -> str:
        """The name of the next step that wants this one."""
        name = self.peek(wanted)
        self._taken.add(name)
        return name

    def peek(self, wanted: str) -> str:
        """The name that `take` would give."""
        base = _NOT_IN_NAMES.sub("_", wanted)[:_LONGEST_NAME] or "step"
        if not (base[0].isalpha() or base[0] == "_"):
            base = f"_{base}"
        number = self._last.get(base, 1)
        name = base if number == 1 else f"{base}-{number}"
        while name in self._taken:
            number += 1
            name = f"{base}-{number}"
        self._last[base] = number
        return name
