"""``retinue top``: show the current agents, calls and runs."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from retinue.cli.options import json_option
from retinue.cli.output import clean, print_json, print_table
from retinue.cli.session import CommandSession, open_session, render_call, run_command

if TYPE_CHECKING:
    from retinue.runtime.commands.top import Listed
    from retinue.runtime.observing.traffic import Traffic

_ASK_EVERY_S = 5.0


class Serving(NamedTuple):
    """The address of a hub, and how many processes serve there."""

    url: str
    processes: int


Part = tuple[tuple[str, ...], list[tuple[Any, ...]]]
"""Columns and rows of one table."""


@click.command()
@click.option(
    "--interval",
    "interval_s",
    metavar="S",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between two pictures at a terminal.",
)
@json_option
def top(interval_s: float, as_json: bool) -> None:
    """Show agents, calls and runs as they are now.

    On a terminal the display updates until Ctrl-C. Through a pipe, and with --json, it is printed once.
    Shown are the calls through the hub of this state.
    """
    from retinue.core.errors import StateError
    from retinue.storage.state import find_hub_url

    session = open_session(log_level="error")
    url = find_hub_url(session.state)
    if url is None:
        raise StateError(f"no hub runs on {session.state.root}", remedy="start one: retinue hub --detach")
    hub = session.state.read_hub()
    serving = Serving(url, hub.processes if hub is not None and hub.url == url else 1)
    if sys.stdout.isatty() and not as_json:
        try:
            run_command(_show_live(session, serving, interval_s))
        except KeyboardInterrupt:
            return
    else:
        run_command(_show_once(session, serving, as_json))


async def _show_once(session: CommandSession, hub: Serving, as_json: bool) -> None:
    from retinue.runtime.commands.top import ask_hub
    from retinue.runtime.observing.traffic import read_traffic
    from retinue.storage.audit_log import AuditLog

    listed = await ask_hub(session.settings, session.state, hub.url)
    traffic = read_traffic(AuditLog(session.state.database), datetime.now(UTC))
    if as_json:
        print_json(_as_json(hub, listed, traffic))
        return
    click.echo(_headline(hub, listed, traffic))
    for columns, rows in _tables(listed, traffic):
        if rows:
            click.echo()
            print_table(columns, rows)
    for row in traffic.last:
        click.echo(render_call(row))


async def _show_live(session: CommandSession, hub: Serving, interval_s: float) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    from retinue.runtime.commands.top import ask_hub
    from retinue.runtime.observing.traffic import read_traffic
    from retinue.storage.audit_log import AuditLog

    log = AuditLog(session.state.database)
    listed, asked_at = await ask_hub(session.settings, session.state, hub.url), time.monotonic()

    def draw() -> Group:
        traffic = read_traffic(log, datetime.now(UTC))
        parts: list[Any] = [Text(_headline(hub, listed, traffic))]
        for columns, rows in _tables(listed, traffic):
            table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
            for column in columns:
                table.add_column(column, no_wrap=True)
            for row in rows:
                table.add_row(*(Text(clean(cell)) for cell in row))
            parts += [Text(), table] if rows else []
        return Group(*parts, Text(), *(Text(render_call(row)) for row in traffic.last))

    console = Console(highlight=False, markup=False)
    with Live(draw(), console=console, screen=True, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(interval_s)
            if time.monotonic() - asked_at >= _ASK_EVERY_S:
                listed, asked_at = await ask_hub(session.settings, session.state, hub.url), time.monotonic()
            live.update(draw(), refresh=True)


def _headline(hub: Serving, listed: Listed, traffic: Traffic) -> str:
    if listed.problem:
        return f"{hub.url}  does not answer: {clean(listed.problem)}"
    away = sum(row.get("status") == "unavailable" for row in listed.agents)
    spread = "" if traffic.p50_ms is None else f", p50 {traffic.p50_ms:.0f} ms, p95 {traffic.p95_ms:.0f} ms"
    processes = f"  {hub.processes} processes" if hub.processes > 1 else ""
    return (
        f"{hub.url}{processes}  agents {len(listed.agents)} ({away} unavailable)  "
        f"{traffic.per_s:.1f} calls/s{spread}, {traffic.failed} failed or refused  "
        f"{len(traffic.in_flight)} in flight  {len(listed.runs)} runs"
    )


def _tables(listed: Listed, traffic: Traffic) -> Sequence[Part]:
    agents = sorted(listed.agents, key=lambda row: (-traffic.by_agent.get(row["name"], 0), row["name"]))
    return (
        (
            ("AGENT", "STATUS", "CALLS/MIN"),
            [(row["name"], row.get("status"), traffic.by_agent.get(row["name"], 0)) for row in agents[:20]],
        ),
        (
            ("RUN", "WORKFLOW", "STATUS"),
            [(row.get("run"), row.get("workflow"), row.get("status")) for row in listed.runs],
        ),
        (
            ("IN FLIGHT", "CALLER", "SINCE"),
            [(row.get("tool"), row.get("caller"), row.get("timestamp")) for row in traffic.in_flight[-10:]],
        ),
    )


def _as_json(hub: Serving, listed: Listed, traffic: Traffic) -> dict[str, Any]:
    return {
        "url": hub.url,
        "processes": hub.processes,
        **({"problem": listed.problem} if listed.problem else {}),
        "agents": list(listed.agents),
        "runs": list(listed.runs),
        "calls": {
            "window_s": traffic.window_s,
            "count": traffic.calls,
            "per_s": round(traffic.per_s, 3),
            "failed": traffic.failed,
            "p50_ms": traffic.p50_ms,
            "p95_ms": traffic.p95_ms,
            "by_agent": dict(traffic.by_agent),
            "in_flight": len(traffic.in_flight),
        },
    }
