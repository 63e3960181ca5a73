"""The steps of a run as they happen: one line each on standard error, and what is running now."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from retinue.cli.output import clean

if TYPE_CHECKING:
    from rich.status import Status

MARKS = {"done": ("✓", "green"), "failed": ("✗", "red"), "skipped": ("–", "yellow")}


class RunProgress:
    """Prints a line per finished step; on a terminal a moving line says which ones are running."""

    def __init__(self, run_id: str, workflow: str) -> None:
        self._heading = f"{clean(workflow)} · run {clean(run_id)}"
        self._running: dict[str, str] = {}
        self._status: Status | None = None

    def __enter__(self) -> RunProgress:
        click.secho(self._heading, err=True, bold=True)
        if sys.stderr.isatty():
            from rich.console import Console

            console = Console(file=sys.stderr, highlight=False, markup=False)
            self._status = console.status("")
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, event: Mapping[str, Any]) -> None:
        """Take one event of ``follow_run``."""
        step = clean(event.get("step"))
        if event.get("kind") == "step_started":
            self._running[step] = f"{step} {clean(event.get('agent'))}".strip()
        elif event.get("kind") == "step_finished":
            self._running.pop(step, None)
            if line := render_step(event):
                click.echo(line, err=True)
        if self._status is not None:
            self._status.update(", ".join(self._running.values()) or "…")


def render_step(event: Mapping[str, Any]) -> str | None:
    """The line of a finished step; None for what only prepares one (the choice of its agent)."""
    kind = event.get("what") or event.get("call_kind") or "call"
    if kind == "choose" and not event.get("error"):
        return None
    error = event.get("error")
    outcome = "failed" if error else "skipped" if kind == "skip" else "done"
    mark, colour = MARKS[outcome]
    cells = [clean(event.get(key)) for key in ("step", "agent", "skill")]
    took = event.get("duration_ms")
    line = f"{cells[0]:<20} {cells[1]:<16} {cells[2]:<20}".rstrip()
    if outcome == "skipped":
        line += "  skipped"
    elif isinstance(took, int | float):
        line += f"  {took:,.0f} ms"
    if isinstance(error, Mapping):
        line += f"  {clean(error.get('message'))}"
    return f"  {click.style(mark, fg=colour)} {line}"
