"""What the terminal shows of a turn: texts while they are written, tool steps, the answer and the costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

from retinue.cli.output import clean, note, print_json, render_usage_line
from retinue.cli.terminal_channel import ShownText
from retinue.core.durations import render_elapsed
from retinue.core.usage import add_usage

if TYPE_CHECKING:
    from retinue.cli.chat.partner import Partner
    from retinue.client.updates import RunUpdate

_CALL = "call-"
"""Begins the last part of the path of a tool call, whose text is no answer."""


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """How a turn ended; ``output`` is the answer, of a limited turn the last one."""

    run: str
    status: Literal["done", "limited", "cancelled"]
    output: Any = None
    usage: Mapping[str, Any] | None = None
    duration_s: float = 0.0
    remedy: str = ""

    def to_json(self, prompt: str, session: str) -> dict[str, Any]:
        """The turn as one line of ``--json``."""
        shown = {
            "prompt": prompt,
            "status": self.status,
            "output": self.output,
            "run": self.run,
            "session": session,
        }
        return shown | ({"usage": dict(self.usage)} if self.usage else {})


class Screen:
    """Prints a conversation: answers on standard output, the rest on standard error.

    With ``is_live`` texts are printed while they are written, and an answer that was printed so is not
    printed again. The events of a run may come later than the next text: what ended before it is then told
    when the text has ended, so that no line stands within the text.
    """

    def __init__(self, *, is_live: bool) -> None:
        self._text = ShownText(names_steps=False) if is_live else None
        self._usage: Mapping[str, Any] | None = None
        self._turns = 0
        self._writing: str | None = None
        self._late: list[str] = []

    def show(self, update: RunUpdate) -> None:
        """Show a step that begins or ends, or a piece of a text."""
        if update.piece is not None:
            if self._text is not None and not update.step.rpartition("/")[2].startswith(_CALL):
                self._writing = update.step
                self._text.show(update.piece)
        elif line := describe_step(update):
            if self._writing is not None and update.kind == "step_finished":
                self._late.append(line)
            else:
                self._end_text()
                self.note(line)
        elif update.kind == "step_finished" and update.step == self._writing:
            self._end_text()

    def _end_text(self) -> None:
        self._writing = None
        late, self._late = self._late, []
        for line in late:
            self.note(line)

    def end_line(self) -> None:
        """End the line of a text that is being printed."""
        if self._text is not None:
            self._text.end_line()

    def note(self, line: str) -> None:
        """Print a line about the turn."""
        self.end_line()
        click.echo(f"  {clean(line)}", err=True)

    def end(self, turn: TurnEnd) -> None:
        """Print the answer, and what the turn has spent."""
        self._turns += 1
        self._end_text()
        self._print_answer(turn.output)
        if turn.status == "cancelled":
            self.note("cancelled")
        elif turn.status == "limited":
            self.note(f"a limit ended the turn; {turn.remedy}")
        if turn.usage:
            self._usage = add_usage(self._usage, turn.usage)
            total = "" if self._turns < 2 else f" · in all: {_render_total(self._usage or {})}"
            self.note(f"{render_usage_line(turn.usage)} · {render_elapsed(turn.duration_s)}{total}")

    def _print_answer(self, answer: Any) -> None:
        self.end_line()
        if self._text is not None and self._text.ends_with(answer):
            return
        if isinstance(answer, str):
            click.echo("".join(c for c in answer if c.isprintable() or c in "\n\t"))
        elif answer is not None:
            print_json(answer)


def describe_step(update: RunUpdate) -> str | None:
    """One line for a tool call that begins or ends, a search, a failed request, or a log line."""
    facts = update.facts
    kind, error = facts.get("kind"), facts.get("error")
    if update.kind == "log":
        return f"log: {facts.get('message')}"
    if kind == "call":
        name = f"{facts.get('agent') or '-'}/{facts.get('skill') or '-'}"
        if update.kind == "step_started":
            return f"→ {name} {facts.get('arguments') or ''}"
        if update.kind == "step_finished":
            took = render_elapsed(float(facts.get("duration_ms") or 0) / 1000)
            return f"← {name} failed: {error['message']}" if error else f"← {name} {took}"
    if kind == "find" and update.kind == "step_finished":
        return f"→ find_skills: {facts.get('message')}"
    if kind == "model" and error:
        return f"{facts.get('agent') or 'model'} failed: {error['message']}"
    return None


def _render_total(usage: Mapping[str, Any]) -> str:
    tokens = usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
    cost = usage.get("cost_usd")
    return f"{tokens:,} tokens" + ("" if cost is None else f", ${cost:.4f}")


def greet(partner: Partner, session: str) -> None:
    """Say who answers, in which session, and which keys end what."""
    note(f"Chatting with {partner.title} (session {session}). Ctrl-C cancels a turn, Ctrl-D ends.")
    if not partner.remembers:
        note("It remembers no earlier turns, because its agent is of an older version.")
