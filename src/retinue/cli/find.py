"""``retinue find``: skills by words or by id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from retinue.cli.completion import complete_skill
from retinue.cli.options import json_option, registry_option
from retinue.cli.output import note, print_json, print_table, warn_missing
from retinue.cli.session import open_session, run_command
from retinue.core.errors import InvalidSettingError

MOST = 50


@click.command()
@click.argument("text", required=False, default="")
@click.option("--skill", metavar="ID", shell_complete=complete_skill, help="Exactly this skill.")
@click.option("--version", metavar="RANGE", help="Only of agents in these versions, such as '>=1.2,<2'.")
@click.option(
    "--label", "labels", metavar="K=V", multiple=True, help="Only of agents with this label; K=* = any value."
)
@click.option("--why", metavar="AGENT", help="Say why this agent stands where it stands, or is not there.")
@click.option("--url", "only_url", is_flag=True, help="Print the agents' urls and nothing else.")
@registry_option("Look in this registry alone; may be given several times.", multiple=True)
@json_option
def find(
    text: str,
    skill: str | None,
    version: str | None,
    labels: tuple[str, ...],
    why: str | None,
    only_url: bool,
    registries: tuple[str, ...],
    as_json: bool,
) -> None:
    """Find skills by words or by id.

    TEXT are words of what is wanted; without any, everything is listed. The best is first.
    """
    if why is not None and registries:
        raise click.UsageError("--why asks the directory; leave out --registry")
    wanted: dict[str, Any] = {
        "query": text,
        "skill": skill,
        "version": version,
        "labels": read_labels(labels),
        "why": why,
    }
    reply = run_command(_find({key: value for key, value in wanted.items() if value}, registries))
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
                (row["skill"], row["agent"], row.get("version"), row.get("status"), row.get("description"))
                for row in rows
            ],
        )
    else:
        note(f"nothing found for {text!r}; see all: retinue find" if text else "no skills yet")
    if not as_json:
        if meant := reply.get("did_you_mean"):
            note(f"did you mean: {meant}")
        if rows and not reply.get("fit", {}).get("likely", True):
            note("nobody here seems to do this; these come nearest")
        if because := reply.get("why"):
            note(f"{because['agent']}: {'; '.join(because['reasons'])}")
        if more := reply.get("more"):
            note(f"{more} more; add words to narrow it")
        warn_missing(reply)


def read_labels(texts: Sequence[str]) -> dict[str, str]:
    """``K=V`` each; raises InvalidSettingError for one without a key or a value."""
    labels = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise InvalidSettingError(
                "--label", f"{text[:80]!r} is no K=V", remedy="write --label team=search, or --label 'team=*'"
            )
        labels[key] = value
    return labels


async def _find(wanted: dict[str, Any], registries: tuple[str, ...]) -> dict[str, Any]:
    session = open_session()
    if registries:
        from retinue.apps.catalog import find_in_registries

        return await find_in_registries(registries, **wanted)
    async with session.client() as client:
        reply: dict[str, Any] = await client.get("find_skills", {**wanted, "limit": MOST})
        return reply
