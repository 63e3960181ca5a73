"""Updates of a call or a run for a program, while it goes on, and the questions that it is asked."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from retinue.core.call import Outcome, TextPiece
from retinue.core.errors import CannotAskError, InputRefusedError
from retinue.mesh.channel import Capability, LogLevel, Root


@dataclass(frozen=True, slots=True)
class CallUpdate:
    """One report of a running call; the last one has the outcome.

    ``kind`` is ``progress``, ``text``, ``log`` or ``outcome``. ``text`` is the message, or a piece of a text
    that is being written, of which ``piece`` has the place; ``fraction`` the progress, 0 to 1, None when
    unknown; ``level`` and ``data`` belong to log lines.
    """

    kind: Literal["progress", "text", "log", "outcome"]
    text: str = ""
    fraction: float | None = None
    level: LogLevel = "info"
    data: Mapping[str, Any] = field(default_factory=dict)
    outcome: Outcome | None = None
    piece: TextPiece | None = None


@dataclass(frozen=True, slots=True)
class RunUpdate:
    """One event of a run: a step began, ended or waits, or the run ended; or a report of a step.

    ``seq`` is the number of the event, after which `RunHandle.events` goes on. ``kind`` is ``step_started``,
    ``step_finished``, ``run_finished`` or another word of the hub, ``at`` a time in seconds since 1970.
    ``facts`` has what belongs to the step: ``kind``, ``agent``, ``skill``, ``duration_ms``, ``error``, and of
    a step that waits ``topic``, ``message`` and ``schema``. ``log`` is a line that a workflow in Python
    wrote, with ``level``, ``message`` and perhaps ``data``.

    A report is of the kind ``progress`` or ``text``. It has no number of its own: ``seq`` is that of the
    event before it, and ``at`` the time when it came. ``text``, ``fraction`` and ``piece`` are as those of a
    `CallUpdate`. Reports are not stored: they come while the step runs, or not at all.
    """

    seq: int
    kind: str
    step: str
    at: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    fraction: float | None = None
    piece: TextPiece | None = None

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> RunUpdate:
        """The event of a row of ``follow_run``."""
        named = ("seq", "event", "step", "at")
        facts = {key: fact for key, fact in row.items() if key not in named}
        return cls(row["seq"], row["event"], row.get("step", ""), row.get("at", 0.0), facts)

    @classmethod
    def from_report(cls, report: Mapping[str, Any], seq: int) -> RunUpdate:
        """The report of a row of ``progress``, which came after the event ``seq``."""
        step = str(report.get("step", ""))
        if (piece := TextPiece.from_json(report)) is not None:
            return cls(seq, "text", step, time.time(), text=piece.text, piece=piece)
        message = str(report.get("message") or "")
        return cls(seq, "progress", step, time.time(), text=message, fraction=report.get("fraction"))


@dataclass(frozen=True, slots=True)
class Question:
    """A question that a skill asks while it runs; the answer fits the JSON Schema ``schema``."""

    message: str
    schema: Mapping[str, Any]


QuestionHandler = Callable[[Question], Any]
"""Answers a question, directly or as a coroutine; raises InputRefusedError to decline."""


class CallerChannel:
    """The channel of a call of a program: reports go to ``report``, questions to ``on_question``."""

    is_sessionless = False

    def __init__(
        self,
        report: Callable[[CallUpdate], Awaitable[None]] | None,
        on_question: QuestionHandler | None,
    ) -> None:
        self._report = report
        self._on_question = on_question

    @property
    def capabilities(self) -> frozenset[Capability]:
        reports: set[Capability] = set() if self._report is None else {"progress", "log"}
        return frozenset(reports if self._on_question is None else {*reports, "elicitation"})

    async def progress(self, fraction: float | None, message: str = "") -> None:
        if self._report is not None:
            await self._report(CallUpdate("progress", message, fraction))

    async def stream_text(self, piece: TextPiece) -> None:
        if self._report is not None:
            await self._report(CallUpdate("text", piece.text, piece=piece))

    async def log(self, level: LogLevel, message: str, data: Mapping[str, Any] | None = None) -> None:
        if self._report is not None:
            await self._report(CallUpdate("log", message, level=level, data=data or {}))

    async def elicit(self, message: str, schema: Mapping[str, Any], *, key: str | None = None) -> Any:
        """The handler's answer; a bare value stands for a form with one field."""
        if self._on_question is None:
            raise CannotAskError("elicitation")
        answer = self._on_question(Question(message, schema))
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is None:
            raise InputRefusedError(f"the question was answered with decline: {message}")
        fields = schema.get("properties")
        if not isinstance(answer, Mapping) and isinstance(fields, Mapping) and len(fields) == 1:
            return {next(iter(fields)): answer}
        return answer

    async def sample(self, prompt: str, *, max_tokens: int = 1024, key: str | None = None) -> str:
        raise CannotAskError("sampling")

    async def roots(self, *, key: str | None = None) -> tuple[Root, ...]:
        raise CannotAskError("roots")
