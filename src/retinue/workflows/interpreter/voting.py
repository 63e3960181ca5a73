"""Counting ballots (SPEC 3, doubt 9): normalised, blind, and the same in whatever order they come.

Pure: ballots in, a tally out. Two answers are one when they say the same after case, space, quotes,
code fences and a last full stop are taken away; numbers are equal by value, ``42`` and ``"42.0"`` alike.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from retinue.workflows.interpreter.texts import unwrap

_FENCE = re.compile(r"^```[^\n]*\n(?P<inner>.*?)\n?```$", re.DOTALL)
_NUMBER = re.compile(r"[-+]?\d{1,15}(\.\d{1,15})?")
_QUOTES = "\"'`“”‘’«»"
_ENDINGS = ".!;,"


@dataclass(frozen=True, slots=True)
class Ballot:
    """One voter's answer, or why there is none; ``score`` ranks the voters among themselves."""

    voter: str
    output: Any = None
    error: Mapping[str, Any] | None = None
    score: float | None = None
    duration_ms: float = 0.0

    @property
    def ok(self) -> bool:
        return self.error is None

    def to_json(self) -> dict[str, Any]:
        """The row that is returned: agent, ok, output or error, duration_ms."""
        said = {"output": self.output} if self.ok else {"error": self.error}
        return {"agent": self.voter, "ok": self.ok, **said, "duration_ms": self.duration_ms}


@dataclass(frozen=True, slots=True)
class Tally:
    """Equal answers put together, the most frequent first; answers of one frequency by their text."""

    groups: tuple[tuple[str, tuple[Ballot, ...]], ...]

    @property
    def leaders(self) -> tuple[tuple[Ballot, ...], ...]:
        """The groups that have the most votes: more than one is a tie."""
        most = len(self.groups[0][1]) if self.groups else 0
        return tuple(ballots for _, ballots in self.groups if len(ballots) == most)

    @property
    def lead(self) -> int:
        """By how many votes the first is ahead of the second."""
        counts = [len(ballots) for _, ballots in self.groups]
        return counts[0] - (counts[1] if len(counts) > 1 else 0) if counts else 0

    @property
    def counts(self) -> dict[str, int]:
        """Answer, normalised and shortened, → votes."""
        return {text[:200]: len(ballots) for text, ballots in self.groups}


def count_votes(ballots: Sequence[Ballot]) -> Tally:
    """The tally of the ballots that hold an answer."""
    groups: dict[str, list[Ballot]] = {}
    for ballot in ballots:
        if ballot.ok:
            groups.setdefault(normalise(ballot.output), []).append(ballot)
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    return Tally(tuple((text, tuple(sorted(found, key=rank_of))) for text, found in ordered))


def rank_of(ballot: Ballot) -> tuple[float, str]:
    """The order of voters: the highest score first, then by name."""
    return (-(ballot.score or 0.0), ballot.voter)


def normalise(value: Any) -> str:
    """What a value says, as one text that is equal for equal answers."""
    value = unwrap(value)
    if isinstance(value, str):
        return _normalise_text(value)
    if isinstance(value, bool) or value is None:
        return orjson.dumps(value).decode()
    if isinstance(value, (int, float)):
        return _normalise_number(float(value)) if abs(value) < 1e15 else str(value)
    return orjson.dumps(_normalise_parts(value), option=orjson.OPT_SORT_KEYS).decode()


def _normalise_parts(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _normalise_parts(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_normalise_parts(inner) for inner in value]
    return normalise(value)


def _normalise_text(text: str) -> str:
    text = unicodedata.normalize("NFKC", text).strip()
    if fenced := _FENCE.match(text):
        text = fenced["inner"]
    text = " ".join(text.casefold().split())
    text = text.strip(_QUOTES).rstrip(_ENDINGS).strip(_QUOTES).strip()
    return _normalise_number(float(text)) if _NUMBER.fullmatch(text) else text


def _normalise_number(number: float) -> str:
    return f"{number:.12g}"
