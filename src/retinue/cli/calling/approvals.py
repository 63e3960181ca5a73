"""``retinue approvals``: list, show, approve and deny the calls that wait for a person."""

from __future__ import annotations

from typing import Any

import click

from retinue.cli.options import hub_option, json_option
from retinue.cli.output import clean, note, print_json, print_table
from retinue.cli.session import ask_hub

_SHOWN_CHARACTERS = 60


@click.group(invoke_without_command=True)
@click.option("--all", "shows_all", is_flag=True, help="Also the answered and expired ones.")
@hub_option
@json_option
@click.pass_context
def approvals(ctx: click.Context, shows_all: bool, hub: str | None, as_json: bool) -> None:
    """List, show, approve and deny the calls that wait for a person.

    Without a subcommand, lists the open ones. A yes counts for exactly the shown call, once, until it
    expires.
    """
    if ctx.invoked_subcommand is None:
        _list(shows_all, hub, as_json)


@approvals.command("list")
@click.option("--all", "shows_all", is_flag=True, help="Also the answered and expired ones.")
@hub_option
@json_option
def list_(shows_all: bool, hub: str | None, as_json: bool) -> None:
    """List the open ones, as without a subcommand."""
    _list(shows_all, hub, as_json)


def _list(shows_all: bool, hub: str | None, as_json: bool) -> None:
    reply = ask_hub("list_approvals", {} if shows_all else {"state": "open"}, hub, as_owner=True)
    if as_json:
        print_json(reply)
        return
    rows = reply["approvals"]
    if not rows:
        note("no call waits for approval")
        return
    print_table(
        ("APPROVAL", "STATE", "CALL", "ARGUMENTS", "CALLER", "RUN", "EXPIRES"),
        [
            (
                row["approval"],
                row["state"],
                f"{row['agent']}/{row['skill']}",
                _shorten(row["arguments"]),
                row["caller"],
                row.get("run", "–"),
                row["expires_at"],
            )
            for row in rows
        ],
    )


@approvals.command()
@click.argument("approval")
@hub_option
@json_option
def show(approval: str, hub: str | None, as_json: bool) -> None:
    """Show one call with all its arguments."""
    row = ask_hub("show_approval", {"approval": approval}, hub, as_owner=True)
    if as_json:
        print_json(row)
        return
    for key, value in row.items():
        if key == "arguments":
            click.echo("arguments:")
            print_json(value)
        elif value != "":
            click.echo(f"{key.replace('_', ' ')}: {clean(str(value))}")


@approvals.command()
@click.argument("approval")
@click.option("--similar", is_flag=True, help="Also calls like it, by a policy that is shown first.")
@click.option(
    "--free", multiple=True, metavar="ARGUMENT", help="With --similar: an argument that may differ."
)
@click.option(
    "--until", default="", metavar="TIME", help="With --similar: 2026-11-27T12:00:00Z; default: in 8 hours."
)
@click.option("--yes", is_flag=True, help="With --similar: store the policy without asking.")
@hub_option
@json_option
def approve(
    approval: str,
    similar: bool,
    free: tuple[str, ...],
    until: str,
    yes: bool,
    hub: str | None,
    as_json: bool,
) -> None:
    """Let the call be made.

    With --similar the same caller may also make calls of the same skill whose arguments are equal, but for
    the free ones.
    """
    if not similar:
        if free or until or yes:
            raise click.UsageError("--free, --until and --yes need --similar")
        _answer(approval, "yes", "", hub, as_json)
        return
    arguments = {"approval": approval, "free": list(free), "until": until}
    draft = ask_hub("approve_similar", arguments, hub, as_owner=True)
    if not as_json:
        click.echo(draft["rule"])
    if not yes:
        click.confirm("Store this policy and approve the call?", abort=True, err=True)
    shown = {**arguments, "until": draft["until"], "rule": draft["rule"]}
    row = ask_hub("approve_similar", shown, hub, as_owner=True)
    if as_json:
        print_json(row)
    else:
        note(f"{row['state']}: {row['agent']}/{row['skill']}, and similar calls until {row['until']}")


@approvals.command()
@click.argument("approval")
@click.option("--reason", default="", metavar="TEXT", help="Why not; the caller reads it.")
@hub_option
@json_option
def deny(approval: str, reason: str, hub: str | None, as_json: bool) -> None:
    """Refuse the call."""
    _answer(approval, "no", reason, hub, as_json)


def _answer(approval: str, verdict: str, comment: str, hub: str | None, as_json: bool) -> None:
    arguments = {"approval": approval, "verdict": verdict, "comment": comment}
    row = ask_hub("answer_approval", arguments, hub, as_owner=True)
    if as_json:
        print_json(row)
    else:
        note(f"{row['state']}: {row['agent']}/{row['skill']}")


def _shorten(arguments: Any) -> str:
    import orjson  # after the reply, which needed it

    text = clean(orjson.dumps(arguments).decode())
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
