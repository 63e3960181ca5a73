"""One difference between two digests of a team, and what finds them in names, files and words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from retinue.team.package import Team

Kind = Literal["added", "removed", "changed"]
_SIGNS: Mapping[str, str] = {"added": "+", "removed": "-", "changed": "~"}

_MAX_WORDS = 8_000
MAX_SHOWN = 12
"""Lines of details of one change."""

_WORD = re.compile(r"\w+\s*|[^\w\s]\s*|\s+")


@dataclass(frozen=True, slots=True)
class Change:
    """One difference: its area, the name of what differs, and a text; ``details`` are further lines."""

    area: str
    name: str
    kind: Kind
    text: str
    is_wider: bool = False
    is_breaking: bool = False
    details: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The change as JSON."""
        row: dict[str, Any] = {"area": self.area, "name": self.name, "change": self.kind, "text": self.text}
        row |= {"wider": self.is_wider, "breaking": self.is_breaking}
        return row | ({"details": list(self.details)} if self.details else {})

    def render(self) -> list[str]:
        """The change as lines of text."""
        marks = "  WIDER" * self.is_wider + "  BREAKING" * self.is_breaking
        return [f"{_SIGNS[self.kind]} {self.area} {self.name}: {self.text}{marks}"] + [
            f"    {line}" for line in self.details
        ]


@dataclass(frozen=True, slots=True)
class TeamContent:
    """A team and its files by path."""

    team: Team
    files: Mapping[str, bytes]

    def text_of(self, path: str) -> str:
        """A file as text."""
        return self.files.get(path, b"").decode("utf-8", "replace")


def changed_files(
    old: TeamContent, new: TeamContent, layer: str
) -> Iterator[tuple[str, str | None, str | None]]:
    """The files of a layer that differ: path, text before and text after; None where there is none."""
    before = {row.path: row.sha256 for row in old.team.files if row.layer == layer}
    after = {row.path: row.sha256 for row in new.team.files if row.layer == layer}
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path):
            yield (
                path,
                old.text_of(path) if path in before else None,
                new.text_of(path) if path in after else None,
            )


def compare_names(
    area: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    describe: Callable[[Any], str],
    *,
    is_wider: bool,
) -> Iterator[Change]:
    for name in sorted(before.keys() - after.keys()):
        yield Change(area, name, "removed", "is gone")
    for name in sorted(after.keys() - before.keys()):
        yield Change(area, name, "added", describe(after[name]) or "is new", is_wider=is_wider)


def is_more(before: float | None, after: float | None) -> bool:
    """Whether a limit permits more; None is no limit."""
    return before is not None and (after is None or after > before)


def compare_words(before: str, after: str) -> list[str]:
    """The places where two texts differ, each as one line with ``[-old-]`` and ``{+new+}``."""
    words_before, words_after = _WORD.findall(before), _WORD.findall(after)
    if len(words_before) + len(words_after) > _MAX_WORDS:
        return [f"{len(words_before):,} → {len(words_after):,} words"]
    places = []
    matcher = difflib.SequenceMatcher(None, words_before, words_after, autojunk=False)
    for tag, start, end, start_after, end_after in matcher.get_opcodes():
        if tag == "equal":
            continue
        gone, come = "".join(words_before[start:end]), "".join(words_after[start_after:end_after])
        context = "".join(words_before[max(0, start - 6) : start])
        following = "".join(words_before[end : end + 6])
        middle = (f"[-{gone.strip()}-]" if gone else "") + (f"{{+{come.strip()}+}}" if come else "")
        places.append(" ".join(f"{context}{middle}{following}".split()))
    return places


def count_places(words: Sequence[str]) -> str:
    """How many places differ, as text."""
    return f"{len(words)} place{'s' * (len(words) != 1)}"
