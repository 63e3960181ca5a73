"""``retinue diff``: what one digest of a team can do that another cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from retinue.cli.options import json_option
from retinue.cli.output import note, print_json
from retinue.cli.session import open_session, run_command

if TYPE_CHECKING:
    from retinue.runtime.commands.teams.commands import Comparison


@click.command()
@click.argument("old", metavar="A")
@click.argument("new", metavar="B")
@json_option
def diff(old: str, new: str, as_json: bool) -> int:
    """Compare two digests of a team by what they can do.

    A and B are references as of retinue up; nothing of them is run. Exits with 0 if both are equal, with 1
    if they differ, and with 3 if B can do more: it has a new program, host, model, secret or receiver of one,
    may make calls that A may not make, or has fewer limits. BREAKING marks what callers have to follow.
    """
    compared = run_command(_diff(old, new))
    if as_json:
        print_json(compared.as_json())
        return compared.status
    for change in compared.changes:
        for line in change.render():
            click.echo("".join(character for character in line if character.isprintable()))
    words = {0: "the same", 1: "different", 3: "different, and B can do more"}
    note(f"{compared.old.name} {compared.old.version} and {compared.new.version}: {words[compared.status]}")
    return compared.status


async def _diff(old: str, new: str) -> Comparison:
    from retinue.runtime.commands.teams.commands import open_teams

    session = open_session()
    async with open_teams(session.settings, session.state) as teams:
        return await teams.compare(old, new)
