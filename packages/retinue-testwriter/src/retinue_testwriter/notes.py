"""Data that the agents embed in their texts: a JSON block in a plan, a comment in a test file.

A step of a workflow receives only the fields that its skill declares, so plan and code must be complete in
themselves. The changes that a review asks for travel as `Narrowing`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_BLOCK = re.compile(r"```json\s*\n(.*?)\n```", re.DOTALL)
_MARK = "# retinue:"


def render_plan_notes(notes: Mapping[str, Any]) -> str:
    """A fenced JSON block for the end of a plan."""
    return f"```json\n{json.dumps(notes, indent=1)}\n```"


def parse_plan_notes(plan: str) -> dict[str, Any] | None:
    """The last JSON block of a plan that names a module, or None."""
    for match in reversed(list(_BLOCK.finditer(plan))):
        try:
            notes = json.loads(match.group(1))
        except ValueError:
            continue
        if isinstance(notes, dict) and isinstance(notes.get("module"), str):
            return notes
    return None


def render_code_notes(notes: Mapping[str, Any]) -> str:
    """One comment line for the head of a test file."""
    return f"{_MARK} {json.dumps(notes)}"


def parse_code_notes(code: str) -> dict[str, Any]:
    """Parse the comment of a test file; {} without one."""
    for line in code.splitlines():
        if line.startswith(_MARK):
            try:
                notes = json.loads(line[len(_MARK) :])
            except ValueError:
                return {}
            return notes if isinstance(notes, dict) else {}
    return {}


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Changes to one test.

    ``known``: documented exceptions that the test accepts from now on.
    ``allow``: undocumented exceptions that it accepts from now on, as source → the call that raised it.
    ``drop``: assertions that did not hold. ``examples``: maximum number of examples of a slow test.
    ``leave_out``: why the test is no longer written.
    """

    allow: Mapping[str, str] = field(default_factory=dict)
    drop: Sequence[str] = ()
    known: Sequence[str] = ()
    examples: int = 0
    leave_out: str = ""

    def drops(self, statement: str) -> bool:
        """Whether this statement of the test is dropped."""
        return bool(self.drop) and normalise(statement) in {normalise(line) for line in self.drop}

    def as_json(self) -> dict[str, Any]:
        note: dict[str, Any] = {}
        if self.allow:
            note["allow"] = dict(self.allow)
        if self.drop:
            note["drop"] = list(self.drop)
        if self.known:
            note["known"] = list(self.known)
        if self.examples:
            note["examples"] = self.examples
        if self.leave_out:
            note["leave_out"] = self.leave_out
        return note

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
    """Parse narrowings by the name of the test; other content, such as a model's review, is ignored."""
    narrowings: dict[str, Narrowing] = {}
    if not isinstance(described, Mapping):
        return narrowings
    for name, entry in described.items():
        if not isinstance(entry, Mapping):
            continue
        allow, drop, known = entry.get("allow"), entry.get("drop"), entry.get("known")
        examples = entry.get("examples")
        narrowings[str(name)] = Narrowing(
            allow={str(k): str(v) for k, v in allow.items()} if isinstance(allow, Mapping) else {},
            drop=tuple(str(line) for line in drop) if isinstance(drop, list) else (),
            known=tuple(str(name) for name in known) if isinstance(known, list) else (),
            examples=examples if isinstance(examples, int) and 0 < examples < 1000 else 0,
            leave_out=str(entry.get("leave_out") or ""),
        )
    return narrowings


def render_narrowing(narrowing: Mapping[str, Narrowing]) -> dict[str, Any]:
    return {name: entry.as_json() for name, entry in narrowing.items()}


def merge_narrowing(earlier: Mapping[str, Narrowing], later: Mapping[str, Narrowing]) -> dict[str, Narrowing]:
    """Merge two sets of narrowings."""
    merged = dict(earlier)
    for name, entry in later.items():
        merged[name] = merged[name].merge(entry) if name in merged else entry
    return merged


def normalise(statement: str) -> str:
    """Normalise quotes and line breaks of a statement."""
    try:
        return ast.unparse(ast.parse(statement))
    except (SyntaxError, ValueError):
        return statement.strip()
