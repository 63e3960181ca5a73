"""``retinue stop`` and ``status``: stop the hub of this state, and show its status."""

from __future__ import annotations

import os

import click

from retinue.cli.options import json_option
from retinue.cli.output import note, print_json, warn
from retinue.cli.session import find_state, open_session, run_command

NOT_RUNNING = 3
NOT_ANSWERING = 7
"""The exit statuses of ``retinue status``, as in the table of all commands."""


@click.command()
@click.option(
    "--timeout",
    "within_s",
    metavar="S",
    type=click.FloatRange(0.1, 3600),
    default=90.0,
    show_default=True,
    help="Seconds to wait for calls in flight and for the agents of the hub.",
)
@click.option("--kill", is_flag=True, help="Kill the hub if it has not stopped by then.")
@json_option
def stop(within_s: float, kill: bool, as_json: bool) -> None:
    """Stop the hub of this state.

    Stops the hub and the agents that it started, wherever it was started from, and waits until it has ended.
    Calls in flight may end; runs of workflows continue when a hub starts again.
    """
    from retinue.runtime.commands.hub_control import stop_hub

    state = find_state()
    hub = run_command(stop_hub(state, within_s=within_s, kill=kill))
    if as_json:
        print_json({"stopped": hub is not None, **({"url": hub.url, "pid": hub.pid} if hub else {})})
    elif hub is None:
        note(f"no hub runs on {state.root}")
    else:
        click.echo(f"stopped the hub at {hub.url} (pid {hub.pid})")


@click.command()
@click.option("--pid", "only_pid", is_flag=True, help="Print the process id of the hub only.")
@json_option
def status(only_pid: bool, as_json: bool) -> int:
    """Show whether the hub of this state runs.

    The exit status is 0 if it runs, 3 if none does, and 7 if it does not answer.
    """
    from retinue.core.durations import render_duration
    from retinue.runtime.commands.hub_control import read_status
    from retinue.storage.state import HUB_VARIABLE

    session = open_session(log_level="error")
    status = run_command(read_status(session.settings, session.state))
    if as_json:
        print_json(status.as_json())
    elif only_pid and status.hub is not None:
        click.echo(status.hub.pid)
    elif status.hub is None:
        killed = " (the last one was killed)" if status.status == "killed" else ""
        (note if only_pid else click.echo)(f"no hub runs on {status.state}{killed}")
        note("start one: retinue hub --detach")
    else:
        up = "" if status.up_s is None else f", up {render_duration(round(status.up_s))}"
        lines = {
            "hub": f"{status.hub.url}  {_WORDS[status.status]}",
            "process": f"pid {status.hub.pid}{_render_processes(status.hub.processes)}{up}"
            f"{_render_memory(status.memory_bytes)}",
            "agents": None if status.agents is None else f"{status.available} of {status.agents} available",
            "state": status.state,
            "log": status.log or "at the terminal or the service that started it",
        }
        for name, text in lines.items():
            if text is not None:
                click.echo(f"{name:<8} {text}")
        if status.problem:
            warn(status.problem)
    if url := os.environ.get(HUB_VARIABLE):
        warn(f"{HUB_VARIABLE} is set: the other commands use the hub at {url}")
    return {"running": 0, "starting": 0, "unanswering": NOT_ANSWERING}.get(status.status, NOT_RUNNING)


_WORDS = {"running": "running", "starting": "starting its agents", "unanswering": "does not answer"}


def _render_processes(count: int) -> str:
    return "" if count == 1 else f" and {count} processes that serve"


def _render_memory(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f", {size_bytes / 1e6:,.0f} MB"
