"""``retinue find`` finds skills by words or by id; ``retinue call`` calls one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from retinue.cli.calling.result_files import out_option, print_result
from retinue.cli.completion import complete_agent, complete_skill
from retinue.cli.options import (
    budget_options,
    hub_option,
    join_budget,
    json_option,
    read_object,
    registry_option,
)
from retinue.cli.output import note, print_json, print_table, render_usage_line, warn, warn_missing
from retinue.cli.session import open_session, run_command
from retinue.core.durations import render_elapsed
from retinue.core.errors import InvalidSettingError

if TYPE_CHECKING:
    from retinue.cli.terminal_channel import TerminalChannel
    from retinue.core.call import Outcome

MAX_ROWS = 50


@click.command()
@click.argument("text", required=False, default="")
@click.option("--skill", metavar="ID", shell_complete=complete_skill, help="Id of the skill.")
@click.option("--version", metavar="RANGE", help="Only agents in this version range, such as '>=1.2,<2'.")
@click.option(
    "--label",
    "labels",
    metavar="K=V",
    multiple=True,
    help="Only agents with this label; K=* matches any value.",
)
@click.option("--why", metavar="AGENT", help="Explain the rank of this agent, or why it is not listed.")
@click.option("--url", "only_url", is_flag=True, help="Print only the URLs of the agents.")
@hub_option
@registry_option("Search only this registry; repeatable.", multiple=True)
@json_option
def find(
    text: str,
    skill: str | None,
    version: str | None,
    labels: tuple[str, ...],
    why: str | None,
    only_url: bool,
    hub: str | None,
    registries: tuple[str, ...],
    as_json: bool,
) -> None:
    """Find skills by words or by id.

    TEXT describes the skill in words; without it, all skills are listed. The best match comes first.
    """
    if why is not None and registries:
        raise click.UsageError("--why cannot be combined with --registry")
    if hub is not None and registries:
        raise click.UsageError("--hub cannot be combined with --registry")
    wanted: dict[str, Any] = {
        "query": text,
        "skill": skill,
        "version": version,
        "labels": read_labels(labels),
        "why": why,
    }
    reply = run_command(_find({key: value for key, value in wanted.items() if value}, registries, hub))
    rows = reply["skills"]
    if as_json:
        print_json(reply)
    elif only_url:
        for url in dict.fromkeys(row["url"] for row in rows if row.get("url")):
            click.echo(url)
    elif rows:
        print_table(
            ("SKILL", "AGENT", "VERSION", "STATUS", "DESCRIPTION"),
            [
                (row["skill"], row["agent"], row.get("version"), _render_status(row), row.get("description"))
                for row in rows
            ],
            cut="DESCRIPTION",
        )
    else:
        note(f"nothing found for {text!r}; list all: retinue find" if text else "no skills yet")
    if not as_json:
        if meant := reply.get("did_you_mean"):
            note(f"did you mean: {meant}")
        if rows and not reply.get("fit", {}).get("likely", True):
            note("only some of these words match; the closest skills are shown")
        if gap := reply.get("gap"):
            note(gap)
        if because := reply.get("why"):
            note(f"{because['agent']}: {'; '.join(because['reasons'])}")
        if more := reply.get("more"):
            note(f"{more} more; add words to narrow it")
        warn_missing(reply)


def _render_status(row: dict[str, Any]) -> str:
    status = str(row.get("status"))
    origin = f", {str(row['trust']).replace('_', ' ')}" if row.get("trust") else ""
    return f"{status}{origin}{', deprecated' if row.get('deprecated') else ''}"


def read_labels(texts: Sequence[str]) -> dict[str, str]:
    """Parse ``K=V`` texts; raises InvalidSettingError for one without a key or a value."""
    labels = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise InvalidSettingError(
                "--label",
                f"{text[:80]!r} is not K=V",
                remedy="write --label team=search, or --label 'team=*'",
            )
        labels[key] = value
    return labels


async def _find(wanted: dict[str, Any], registries: tuple[str, ...], hub: str | None) -> dict[str, Any]:
    session = open_session()
    if registries:
        from retinue.runtime.commands.publishing import find_in_registries

        return await find_in_registries(registries, **wanted)
    async with session.hub_client(hub) as client:
        reply: dict[str, Any] = await client.get(
            "find_skills", {**wanted, "limit": MAX_ROWS, "detailed": True}
        )
        return reply


@click.command()
@click.argument("skill", shell_complete=complete_skill)
@click.argument("arguments", metavar="[JSON]", default="{}")
@click.option("--agent", metavar="NAME", shell_complete=complete_agent, help="Only this agent.")
@click.option("--version", metavar="RANGE", help="Only agents in this version range, such as '>=1.2,<2'.")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="S",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Give up after this many seconds.",
)
@click.option(
    "--progress/--no-progress",
    "is_interactive",
    default=None,
    help="Print progress and log lines; default: in a terminal. Questions are asked in a terminal only.",
)
@budget_options
@hub_option
@out_option
@json_option
def call(
    skill: str,
    arguments: str,
    agent: str | None,
    version: str | None,
    timeout_s: float,
    is_interactive: bool | None,
    tokens: int | None,
    dollars: float | None,
    hub: str | None,
    out: str | None,
    as_json: bool,
) -> None:
    """Call a skill on any agent that offers it.

    JSON is an object that matches the skill's input schema; @FILE reads it from a file, - from standard
    input. The result is printed as JSON; --out writes its images, sounds and files. In a terminal, progress
    and log lines of the skill are printed on standard error, and its questions are asked there; the time
    limit pauses while you answer. Text is printed while a skill writes it; a result that was printed so is
    not printed again.
    """
    fields = read_object(arguments, "arguments")
    channel = None
    if sys.stderr.isatty() if is_interactive is None else is_interactive:
        from retinue.cli.terminal_channel import TerminalChannel

        # in a pipe, the result has the text
        shows_text = bool(is_interactive) or (sys.stdout.isatty() and not as_json)
        asks = sys.stdin.isatty() and sys.stderr.isatty()
        channel = TerminalChannel(asks=asks, shows_text=shows_text)
    asked = _call(
        skill,
        fields,
        hub,
        channel=channel,
        agent=agent,
        version=version,
        timeout_s=timeout_s,
        budget=join_budget(tokens, dollars),
    )
    outcome = run_command(asked)
    for warning in outcome.warnings:
        warn(warning)
    is_shown = channel is not None and channel.has_shown(outcome.value) and sys.stdout.isatty()
    if not is_shown or outcome.parts or out is not None or as_json:
        print_result(outcome.value, outcome.parts, out, as_json=as_json)
    if not as_json and outcome.usage is not None and sys.stderr.isatty():
        note(render_usage_line(outcome.usage))
    if not as_json and outcome.agent is not None and sys.stderr.isatty():
        name = f"{outcome.agent} {outcome.version or ''}".rstrip()
        took_s = outcome.duration_ms / 1000
        note(f"{name} · {outcome.duration_ms:.0f} ms" if took_s < 1 else f"{name} · {render_elapsed(took_s)}")


async def _call(
    skill: str,
    arguments: dict[str, Any],
    hub: str | None,
    *,
    channel: TerminalChannel | None,
    **options: Any,
) -> Outcome:
    async with open_session().hub_client(hub) as client:
        if channel is not None:
            options["channel"] = channel
        outcome = await client.ask(skill, arguments, setting="--timeout", **options)
        outcome.get()
        return outcome
