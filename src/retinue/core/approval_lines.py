"""The lines of progress about a call that waits for a person; endpoints with such a state read them back.

Progress passes through all protocols as text, so the text is the form. It tells the step, the approval and
whether the wait is over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

MAX_SHOWN_CHARACTERS = 4_000
"""A client shows arguments up to this length whole; longer ones are read and answered elsewhere."""

QUESTION_FORM: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "approve": {"type": "boolean", "title": "Approve this call"},
        "comment": {"type": "string", "title": "Comment"},
    },
    "required": ["approve"],
}
"""The form with which the person at a client answers."""

_LINE = re.compile(
    r"(?P<step>\S+/answer-\d+): (?:answered|nobody answered in time"
    r"|waits for approval of .* Answer: retinue approvals approve (?P<approval>\S+))",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class ApprovalLine:
    """What a line says; ``approval`` is the one that is open at the step, None where its wait is over."""

    step: str
    approval: str | None


def render_question(agent: str, skill: str, arguments: Mapping[str, Any], reason: str) -> str | None:
    """The question for the person at a client; None for arguments that are too long to be shown whole."""
    text = orjson.dumps(arguments).decode()
    return None if len(text) > MAX_SHOWN_CHARACTERS else f"{agent}/{skill} with {text}? {reason}."


def render_open(step: str, question: str, approval: str) -> str:
    """The line of a call that waits; ``question`` names the skill and the arguments."""
    return f"{step}: waits for approval of {question} Answer: retinue approvals approve {approval}"


def render_over(step: str, *, is_late: bool) -> str:
    """The line of the end of a wait; ``is_late`` = nobody answered in time."""
    return f"{step}: {'nobody answered in time' if is_late else 'answered'}"


def read_approval_line(line: str) -> ApprovalLine | None:
    """What a line of progress says about an approval; None for any other line."""
    match = _LINE.fullmatch(line)
    return None if match is None else ApprovalLine(match["step"], match["approval"])
