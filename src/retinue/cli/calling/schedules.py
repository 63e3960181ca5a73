"""``retinue schedules``: list schedules and triggers of workflows, add, pause, resume, remove, run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any

import click

from retinue.cli.options import hub_option, json_option
from retinue.cli.output import note, print_json, print_table
from retinue.cli.session import ask_hub

MISSED = ("skip", "once", "all")
OVERLAP = ("skip", "queue", "cancel")


@click.group(invoke_without_command=True)
@hub_option
@json_option
@click.pass_context
def schedules(ctx: click.Context, hub: str | None, as_json: bool) -> None:
    """List the schedules and triggers of workflows, add, pause, resume, remove and run them.

    Without a subcommand, lists each with its next time and what happened last. Schedules fire while a hub or
    a worker runs, triggers while a hub runs.
    """
    if ctx.invoked_subcommand is not None:
        return
    reply = ask_hub("list_schedules", {}, hub)
    if as_json:
        print_json(reply)
        return
    rows = reply["schedules"]
    if not rows:
        note('no schedules; add one: retinue schedules add WORKFLOW --cron "0 3 * * *"')
        return
    print_table(
        ("SCHEDULE", "WORKFLOW", "WHEN", "STATUS", "NEXT", "LAST"),
        [
            (
                row["schedule"],
                row["workflow"],
                _render_rule(row),
                row["status"],
                row.get("next", "–"),
                _render_last(row),
            )
            for row in rows
        ],
    )
    for row in rows:
        if "url" in row:
            note(f"{row['schedule']}: POST {row['url']}")
    _note_reasons(rows)


@schedules.command()
@click.argument("workflow")
@click.option("--name", metavar="NAME", help="Name of the schedule; default: the workflow's.")
@click.option("--cron", metavar="TEXT", help="Minute, hour, day, month, weekday, such as '0 3 * * mon-fri'.")
@click.option("--every", metavar="TIME", help="Time between two starts, such as 15m.")
@click.option("--timezone", metavar="ZONE", help="Time zone of --cron, such as Europe/Berlin; default: UTC.")
@click.option("--on", metavar="EVENT", help="In place of a time, an event: webhook, message, or JSON.")
@click.option("--input", "input_text", metavar="JSON", help="Input of each run.")
@click.option("--missed", type=click.Choice(MISSED), help="After times at which no node ran; default: once.")
@click.option("--overlap", type=click.Choice(OVERLAP), help="While a run still runs; default: skip.")
@click.option("--secret-file", type=click.File("r"), help="Secret of a webhook that its sender has made.")
@click.option("--new-secret", is_flag=True, help="Replace the secret of a webhook.")
@hub_option
@json_option
def add(
    workflow: str,
    name: str | None,
    cron: str | None,
    every: str | None,
    timezone: str | None,
    on: str | None,
    input_text: str | None,
    missed: str | None,
    overlap: str | None,
    secret_file: IO[str] | None,
    new_secret: bool,
    hub: str | None,
    as_json: bool,
) -> None:
    """Start a stored workflow at certain times or on events, with the rights of this command.

    The options replace those of the workflow's own "schedule" and "on". Adding one of the same name replaces
    it. The secret of a webhook is shown once.
    """
    keys = {"cron": cron, "every": every, "timezone": timezone, "missed": missed, "overlap": overlap}
    schedule: dict[str, Any] = {key: value for key, value in keys.items() if value is not None}
    asked: dict[str, Any] = {"workflow": workflow}
    if name is not None:
        asked["name"] = name
    if on is not None:
        asked["on"] = _make_event(on, input_text, schedule)
    elif input_text is not None:
        schedule["input"] = _read_json(input_text)
    if schedule:
        asked["schedule"] = schedule
    if secret_file is not None and new_secret:
        raise click.UsageError("give --secret-file or --new-secret, not both")
    if secret_file is not None or new_secret:
        asked["secret"] = "new" if secret_file is None else secret_file.read().strip()
    _print_changed(ask_hub("add_schedule", asked, hub), as_json)


@schedules.command()
@click.argument("name")
@hub_option
@json_option
def pause(name: str, hub: str | None, as_json: bool) -> None:
    """Start no runs until the schedule is resumed."""
    _change(name, "pause", hub, as_json)


@schedules.command()
@click.argument("name")
@hub_option
@json_option
def resume(name: str, hub: str | None, as_json: bool) -> None:
    """Go on with a paused schedule, from its next time on."""
    _change(name, "resume", hub, as_json)


@schedules.command()
@click.argument("name")
@hub_option
@json_option
def remove(name: str, hub: str | None, as_json: bool) -> None:
    """Remove a schedule. Its runs stay."""
    _change(name, "remove", hub, as_json)


@schedules.command("run-now")
@click.argument("name")
@hub_option
@json_option
def run_now(name: str, hub: str | None, as_json: bool) -> None:
    """Start a run of a schedule now, with the rights of its owner."""
    reply = ask_hub("change_schedule", {"schedule": name, "change": "run_now"}, hub)
    if as_json:
        print_json(reply)
    else:
        note(f"started {reply['run']}; follow it: retinue runs {reply['run']} --follow")


def _change(name: str, change: str, hub: str | None, as_json: bool) -> None:
    arguments = {"schedule": name, "change": change}
    _print_changed(ask_hub("change_schedule", arguments, hub), as_json)


def _print_changed(row: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(row)
        return
    following = f", next {row['next']}" if "next" in row else ""
    click.echo(f"{row['schedule']}: {row['status']}{following}")
    if "url" in row:
        click.echo(f"url: {row['url']}")
    if "secret" in row:
        click.echo(f"secret: {row['secret']}")
        note("the secret is not shown again")
    _note_reasons([row])


def _note_reasons(rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        if "reason" in row:
            note(f"{row['schedule']}: {row['reason']}")


def _make_event(on: str, input_text: str | None, schedule: Mapping[str, Any]) -> Any:
    """The event of ``--on`` with the input of ``--input``; refuses the options of schedules."""
    if schedule:
        raise click.UsageError(f"--on and --{next(iter(schedule))} exclude each other")
    event = _read_json(on)
    if input_text is None:
        return event
    if isinstance(event, str):
        event = {event: {}}
    if not isinstance(event, dict) or not all(isinstance(options, dict) for options in event.values()):
        raise click.UsageError("--input needs --on with the name of an event, or with an object")
    return {kind: {**options, "input": _read_json(input_text)} for kind, options in event.items()}


def _render_rule(row: Mapping[str, Any]) -> str:
    if "on" in row:
        return str(row["on"])
    return f"{row['cron']} {row['timezone']}" if "cron" in row else f"every {row['every']}"


def _render_last(row: Mapping[str, Any]) -> str:
    last = row.get("last")
    if last is None:
        return "–"
    what = f"{last['status']} {last.get('scheduled_at') or last.get('at')}"
    return f"{what}: {last['reason']}" if "reason" in last else what


def _read_json(text: str) -> Any:
    import orjson

    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
