"""The root of the error tree: an error has a kind, a remedy and further facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

OnErrorClass = Literal["request", "refused", "failed", "timeout", "cancelled", "unreachable"]


@dataclass(frozen=True, slots=True)
class Kind:
    """How a failure is handled by retries, by health, and by a workflow's ``on_error``."""

    retryable: bool
    counts_against_health: bool
    on_error: OnErrorClass


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem that a schema check found: a dotted ``path`` ("" = the whole value) and a message.

    ``hint`` is the probable intention; it is told to people and models, not in the message itself.
    """

    path: str
    message: str
    hint: str = ""

    def as_json(self) -> dict[str, str]:
        row = {"path": self.path, "message": self.message}
        return {**row, "hint": self.hint} if self.hint else row


def read_problems(problems: Sequence[Problem | str]) -> tuple[Problem, ...]:
    """The problems; a text is a problem of the whole value."""
    return tuple(Problem("", problem) if isinstance(problem, str) else problem for problem in problems)


def join_problems(problems: Sequence[Problem]) -> str:
    """All problems as one line, in their order (specification 7.8)."""
    return "; ".join(problem.message for problem in problems)


REQUEST = Kind(retryable=False, counts_against_health=False, on_error="request")
REFUSED = Kind(retryable=False, counts_against_health=False, on_error="refused")
FAILED = Kind(retryable=True, counts_against_health=False, on_error="failed")

EXECUTION_FAILED = "Execution failed: "
"""The prefix of the message of a failed skill on the wire (P-24)."""


class RetinueError(Exception):
    """Any failure of Retinue; ``str(error)`` is one line that says what happened.

    ``type`` is the stable machine-readable name (``data.type`` on the wire), ``remedy`` says what to do
    about it, ``data`` holds further facts.
    """

    type: str = "error"
    kind: Kind = FAILED

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    @property
    def remedy(self) -> str:
        """What to do about the failure; a note of the exception too, so that a traceback shows it."""
        return self._remedy

    @remedy.setter
    def remedy(self, remedy: str) -> None:
        self._remedy = remedy
        self.__notes__ = [f"remedy: {remedy}"] if remedy else []

    @property
    def data(self) -> dict[str, Any]:
        """Facts that are sent with the message; JSON values only."""
        return {}
