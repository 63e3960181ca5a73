"""``retinue history``: what came of calls that words led to; ``retinue wishes``: what was not found."""

from __future__ import annotations

from typing import Any

import click

from retinue.cli.completion import complete_agent
from retinue.cli.options import hub_option, json_option
from retinue.cli.output import note, print_json, print_table
from retinue.cli.session import ask_hub


@click.command()
@click.option("--good", metavar="SKILL", help="Your last call of this skill, found by words, was right.")
@click.option("--bad", metavar="SKILL", help="Your last call of this skill, found by words, was wrong.")
@click.option(
    "--agent",
    metavar="NAME",
    shell_complete=complete_agent,
    help="For --good and --bad: a call of this agent.",
)
@click.option("--forget", is_flag=True, help="Remove the whole history and all wishes.")
@hub_option
@json_option
def history(
    good: str | None, bad: str | None, agent: str | None, forget: bool, hub: str | None, as_json: bool
) -> None:
    """Show what came of calls that were found by words, and rate the last one.

    The history changes the order in which skills are found. It holds no text of a request. Without it
    cards and receipts decide the order.
    """
    if sum((good is not None, bad is not None, forget)) > 1:
        raise click.UsageError("give one of --good, --bad and --forget")
    reply: dict[str, Any]
    rated = good if good is not None else bad
    if rated == "":
        raise click.UsageError("--good and --bad need the id of a skill")
    if agent is not None and (not agent or rated is None):
        raise click.UsageError("--agent needs the name of an agent, and --good or --bad")
    if rated is not None:
        rating = {"skill": rated, "verdict": "bad" if good is None else "good"}
        reply = ask_hub("rate_call", rating if agent is None else {**rating, "agent": agent}, hub)
        text = f"{reply['skill']} of {reply['agent']}: {reply['verdict']}" if not as_json else ""
    elif forget:
        reply = ask_hub("forget_history", {}, hub)
        text = f"{reply['forgotten']} records forgotten"
    else:
        reply = ask_hub("show_history", {}, hub)
        text = "" if reply["kept"] else f"no history here: {reply['because']}"
    if as_json:
        print_json(reply)
        return
    if rows := reply.get("skills"):
        print_table(
            ("SKILL", "AGENT", "CALLS", "OUTCOMES", "LAST"),
            [
                (row["skill"], row["agent"], row["calls"], _render(row["verdicts"]), row["last"])
                for row in rows
            ],
        )
    if text:
        note(text)
    elif not rows and rated is None:
        note("no calls yet that were found by words")
    if more := reply.get("more"):
        note(f"{more} more skills")


def _render(verdicts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in verdicts.items())


@click.command()
@hub_option
@json_option
def wishes(hub: str | None, as_json: bool) -> None:
    """List what was asked for and not found, similar requests together.

    Words are shown only if the setting history.wishes is "text". By default only their number is kept.
    """
    reply = ask_hub("list_wishes", {}, hub)
    if as_json:
        print_json(reply)
        return
    if rows := reply["wishes"]:
        print_table(
            ("REQUESTS", "CALLERS", "LAST", "WORDS"),
            [
                (row["requests"], row["callers"], row["last"], "; ".join(row["texts"]) or "not kept")
                for row in rows
            ],
            cut="WORDS",
        )
    elif reply["kept"] == "off":
        note(f"no wishes here: {reply['because']}")
    else:
        note("everything that was asked for was found")
    if rows and reply["kept"] == "count":
        note('the words are not kept; keep them with the setting history.wishes = "text"')
    if more := reply["more"]:
        note(f"{more} more")
