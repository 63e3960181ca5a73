"""``retinue logs``: show calls, and the output of the hub and its agents."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime
from typing import Any

import click

from retinue.cli.completion import complete_agent
from retinue.cli.output import clean, note
from retinue.cli.session import find_state, render_call, run_command

_POLL_S = 0.25
_HIDDEN = frozenset({"timestamp", "source", "event", "level", "line", "exception"})


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Go on with the lines that are added, until Ctrl-C.")
@click.option(
    "--agent",
    metavar="NAME",
    shell_complete=complete_agent,
    help="Only this agent: its calls and its output.",
)
@click.option("--trace", metavar="ID", help="Only the calls of this trace.")
@click.option("--failed", is_flag=True, help="Only failed calls, warnings and errors.")
@click.option(
    "--lines",
    "-n",
    "limit",
    metavar="N",
    type=click.IntRange(0, 100_000),
    default=50,
    show_default=True,
    help="How many of the last lines to begin with.",
)
@click.option(
    "--json/--text",
    "as_json",
    default=None,
    help="One JSON object a line, or text; default: text at a terminal.",
)
def logs(
    follow: bool, agent: str | None, trace: str | None, failed: bool, limit: int, as_json: bool | None
) -> None:
    """Show calls, and what the hub and its agents printed.

    A call is one line: time, skill and agent, duration, outcome. Shown are the calls through the hub of this
    state, the calls made directly to an agent that it started, and the output of those agents; that of the
    hub only if it has no terminal of its own. Arguments and results are not logged.
    """
    from retinue.runtime.observing.mesh_log import LogFilter, MeshLog

    if as_json is None:
        as_json = not sys.stdout.isatty()
    state = find_state()
    log = MeshLog(state, LogFilter(agent, trace, failed))
    render = _render_json if as_json else _Text()
    last = log.read_last(limit)
    for line in render(last):
        click.echo(line)
    if follow:
        run_command(_follow(log, render))
    elif not last:
        note(f"nothing is logged in {state.root}" if not (agent or trace or failed) else "no line fits")


async def _follow(log: Any, render: Any) -> None:
    while True:
        for line in render(log.read_new()):
            click.echo(line)
        await asyncio.sleep(_POLL_S)


def _render_json(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    import orjson

    for row in rows:
        yield orjson.dumps(dict(row)).decode()


class _Text:
    """Renders lines for people; a line of its own says the day when it is not today's."""

    def __init__(self) -> None:
        self._day = date.today()

    def __call__(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        for row in rows:
            at = _parse_time(row["timestamp"])
            if at is not None and at.date() != self._day:
                self._day = at.date()
                yield f"── {self._day.isoformat()} ──"
            if row["event"] == "call" and "skill" in row:
                if row["skill"] == "refresh_agents" and row.get("status") == "done":
                    continue  # agents that come and go say so to the hub: no call of a person
                yield render_call(row)
            else:
                time = "        " if at is None else f"{at:%H:%M:%S}"
                yield f"{time} {clean(row['source'])} │ {_describe(row)}"
            if row.get("exception"):
                yield from ("    " + clean(line) for line in str(row["exception"]).splitlines())


def _describe(row: Mapping[str, Any]) -> str:
    if row["event"] == "output":
        return "".join(c if c.isprintable() else " " for c in str(row.get("line")))
    level = f"{row['level']}: " if row.get("level") not in (None, "info") else ""
    facts = "  ".join(f"{key}={clean(value)}" for key, value in row.items() if key not in _HIDDEN)
    return f"{level}{clean(row['event'])}" + (f"  {facts}" if facts else "")


def _parse_time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone()
    except ValueError:
        return None
