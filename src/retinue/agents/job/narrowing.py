"""What a review tells the next round to change, test by test."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Changes to one test.

    ``known`` are exceptions that the source or the docstring names and that the test accepts from now on;
    ``allow`` are exceptions that nobody documents and that the test accepts from now on, as source → the call
    that raised; ``drop`` are assertions that did not hold; ``examples`` caps the examples of a slow test;
    ``leave_out`` says why the test is not written any more.
    """

    allow: Mapping[str, str] = field(default_factory=dict)
    drop: Sequence[str] = ()
    known: Sequence[str] = ()
    examples: int = 0
    leave_out: str = ""

    def drops(self, statement: str) -> bool:
        """Whether this statement of the test is withdrawn."""
        return bool(self.drop) and normalise(statement) in {normalise(line) for line in self.drop}

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.allow:
            found["allow"] = dict(self.allow)
        if self.drop:
            found["drop"] = list(self.drop)
        if self.known:
            found["known"] = list(self.known)
        if self.examples:
            found["examples"] = self.examples
        if self.leave_out:
            found["leave_out"] = self.leave_out
        return found

    def merge(self, later: Narrowing) -> Narrowing:
        known = tuple(dict.fromkeys([*self.known, *later.known]))
        allow = {**dict(self.allow), **dict(later.allow)}
        return Narrowing(
            allow={exception: call for exception, call in allow.items() if exception not in known},
            drop=tuple(dict.fromkeys([*self.drop, *later.drop])),
            known=known,
            examples=later.examples or self.examples,
            leave_out=later.leave_out or self.leave_out,
        )


def parse_narrowing(described: Any) -> dict[str, Narrowing]:
    """Narrowings by the name of the test; whatever else stands there (a model's review, say) is ignored."""
    found: dict[str, Narrowing] = {}
    if not isinstance(described, Mapping):
        return found
    for name, entry in described.items():
        if not isinstance(entry, Mapping):
            continue
        allow, drop, known = entry.get("allow"), entry.get("drop"), entry.get("known")
        examples = entry.get("examples")
        found[str(name)] = Narrowing(
            allow={str(k): str(v) for k, v in allow.items()} if isinstance(allow, Mapping) else {},
            drop=tuple(str(line) for line in drop) if isinstance(drop, list) else (),
            known=tuple(str(name) for name in known) if isinstance(known, list) else (),
            examples=examples if isinstance(examples, int) and 0 < examples < 1000 else 0,
            leave_out=str(entry.get("leave_out") or ""),
        )
    return found


def render_narrowing(narrowing: Mapping[str, Narrowing]) -> dict[str, Any]:
    return {name: entry.as_json() for name, entry in narrowing.items()}


def merge_narrowing(earlier: Mapping[str, Narrowing], later: Mapping[str, Narrowing]) -> dict[str, Narrowing]:
    """Both together; the later one adds to the earlier."""
    merged = dict(earlier)
    for name, entry in later.items():
        merged[name] = merged[name].merge(entry) if name in merged else entry
    return merged


def normalise(statement: str) -> str:
    """A statement in one spelling, so that quotes and line breaks do not matter."""
    try:
        return ast.unparse(ast.parse(statement))
    except (SyntaxError, ValueError):
        return statement.strip()
