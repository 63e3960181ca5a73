"""``retinue ask``: asks agents about their present capabilities, and calls the best agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from retinue.cli.completion import complete_agent
from retinue.cli.options import hub_option, json_option, read_object
from retinue.cli.output import note, print_json, print_table, warn
from retinue.cli.session import open_session, run_command
from retinue.core.record import QUERY_CAPABILITIES

Json = dict[str, Any]

NOBODY = 1
"""Exit status where no agent can do it."""

_SLACK_S = 10.0
_CALL_TIMEOUT_S = 60.0


@click.command()
@click.argument("agents", metavar="[AGENT]...", nargs=-1, shell_complete=complete_agent)
@click.option("--all", "is_all", is_flag=True, help="Ask every agent.")
@click.option("--summary", "is_summary", is_flag=True, help="Ask what they can do at all; the default.")
@click.option("--capabilities", metavar="A,B", help="Ask whether they have these capabilities.")
@click.option("--any", "is_any", is_flag=True, help="With --capabilities: one of them is enough.")
@click.option("--action", metavar="X", help="Ask for the specification of this action.")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="S",
    type=click.FloatRange(min=0, min_open=True, max=50),
    default=5.0,
    show_default=True,
    help="Take the answers that came within this many seconds.",
)
@click.option(
    "--delegate",
    nargs=2,
    metavar="SKILL JSON",
    help="Call this skill on the best agent, which must have it, too.",
)
@hub_option
@json_option
def ask(
    agents: tuple[str, ...],
    is_all: bool,
    is_summary: bool,
    capabilities: str | None,
    is_any: bool,
    action: str | None,
    timeout_s: float,
    delegate: tuple[str, str] | None,
    hub: str | None,
    as_json: bool,
) -> int:
    """Ask agents what they can do now.

    The agents answer themselves, all at once. The best comes first: by the share of the capabilities, then an
    agent's own yes, confidence, price, time and earlier calls. Agents without an answer are named. Exit
    status 1: no agent can do it.
    """
    if bool(agents) == is_all:
        raise click.UsageError("name agents, or give --all")
    if sum((is_summary, capabilities is not None, action is not None)) > 1:
        raise click.UsageError("give one of --summary, --capabilities and --action")
    if is_any and capabilities is None:
        raise click.UsageError("--any belongs to --capabilities")
    if delegate is not None and (is_summary or action is not None or is_any):
        raise click.UsageError("--delegate can be combined with --capabilities only")
    skills = [word.strip() for word in (capabilities or "").split(",") if word.strip()]
    if capabilities is not None and not skills:
        raise click.UsageError("--capabilities names none")
    arguments: Json = {}
    if delegate is not None:
        arguments = read_object(delegate[1], "arguments")
        skills = list(dict.fromkeys((*skills, delegate[0])))
    query: Json = {"query_type": "summary"}
    if action is not None:
        query = {"query_type": "action_details", "query_parameters": {"action_name": action}}
    elif skills:
        parameters = {"capabilities": skills, "match_type": "any" if is_any else "all"}
        query = {"query_type": "specific", "query_parameters": parameters}
    query |= {"agent": "*" if is_all else list(agents), "timeout_s": timeout_s}
    call = None if delegate is None else (delegate[0], arguments)
    reply, value = run_command(_ask(query, timeout_s, call, hub))
    best = _best_of(reply)
    if call is not None and best is not None:
        _show_silent(reply, as_json)
        note(f"{best['agent']} is the best of {len(reply['answers'])} and was called")
        print_json(value, compact=as_json)
    elif as_json:
        print_json(reply)
    else:
        _show(query["query_type"], reply)
    return 0 if best is not None else NOBODY


async def _ask(
    query: Json, timeout_s: float, call: tuple[str, Json] | None, hub: str | None
) -> tuple[Json, Any]:
    """The reply of the hub, and what the best agent returned where it was called."""
    async with open_session().hub_client(hub) as client:
        reply: Json = await client.get(QUERY_CAPABILITIES, query, timeout_s=timeout_s + _SLACK_S)
        best = _best_of(reply)
        if call is None or best is None:
            return reply, None
        skill, arguments = call
        return reply, await client.get(skill, arguments, agent=best["agent"], timeout_s=_CALL_TIMEOUT_S)


def _best_of(reply: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((row for row in reply["answers"] if row["yes"]), None)


def _show(query_type: str, reply: Mapping[str, Any]) -> None:
    rows: Sequence[Mapping[str, Any]] = reply["answers"]
    if query_type == "specific" and rows:
        print_table(
            ("AGENT", "MATCH", "LIVE", "CONFIDENCE", "PRICE", "TIME", "CAN", "CANNOT"),
            [
                (
                    row["agent"],
                    f"{row['match']:.0%}",
                    "yes" if row["live"] else "no",
                    row.get("confidence"),
                    row.get("price"),
                    f"{row['time_s']:g} s" if "time_s" in row else None,
                    row["answer"].get("matched_capabilities"),
                    row["answer"].get("missing_capabilities"),
                )
                for row in rows
            ],
        )
    elif query_type == "summary" and rows:
        print_table(("AGENT", "LIVE", "TOPICS", "ACTIONS"), [_summary_row(row) for row in rows])
    elif rows:
        print_json({row["agent"]: row["answer"]["action"] for row in rows})
    if not rows:
        note("no agent can do it")
    elif reply["unable"]:
        note(f"{reply['unable']} more cannot do it")
    _show_silent(reply, as_json=False)


def _summary_row(row: Mapping[str, Any]) -> Sequence[Any]:
    stated = row["answer"].get("capabilities") or {}
    actions = [action.get("name") for action in stated.get("actions") or () if isinstance(action, Mapping)]
    return row["agent"], "yes" if row["live"] else "no", stated.get("topics"), actions


def _show_silent(reply: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        return
    for row in reply["silent"]:
        warn(f"no answer of {row['agent']}: {row['reason']}")
    if reply["not_asked"]:
        warn(f"{reply['not_asked']} more agents were not asked")
