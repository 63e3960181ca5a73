"""Compares a generated module with the one that the mesh would give now, by skill."""

from __future__ import annotations

import re
from dataclasses import dataclass

_MARK = re.compile(r'^# skill (".*"): ([0-9a-f]+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Difference:
    """The skills that differ, each as its literal; all empty where the module was edited, or made by
    another version of Retinue."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]


def compare_modules(kept: str, new: str) -> Difference | None:
    """What differs between the module that is kept and the new one; None for equal texts."""
    if kept == new:
        return None
    before, now = (dict(_MARK.findall(text)) for text in (kept, new))
    return Difference(
        tuple(skill for skill in now if skill not in before),
        tuple(skill for skill in before if skill not in now),
        tuple(skill for skill, digest in now.items() if before.get(skill, digest) != digest),
    )
