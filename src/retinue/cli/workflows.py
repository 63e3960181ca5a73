"""``retinue workflows``: what can be run by name."""

from __future__ import annotations

from typing import Any

import click

from retinue.cli.options import json_option
from retinue.cli.output import note, print_json, print_table, warn
from retinue.cli.session import open_session, run_command


@click.command()
@json_option
def workflows(as_json: bool) -> None:
    """List the workflows.

    The built-in ones, those in the folder of custom workflows (workflows/ in the state folder), and
    those that were published in the registries.
    """
    reply = run_command(_list())
    if as_json:
        print_json(reply)
        return
    rows = reply["workflows"]
    readable = [row for row in rows if "error" not in row]
    if readable:
        print_table(
            ("NAME", "FROM", "STEPS", "SKILLS", "DESCRIPTION"),
            [
                (row["name"], row.get("origin"), row.get("steps"), row.get("skills"), row.get("description"))
                for row in readable
            ],
        )
    else:
        note("no workflows yet; publish one: retinue publish flow.yaml")
    for row in rows:
        if "error" in row:
            warn(f"{row['name']}: {row['error']}")


async def _list() -> dict[str, Any]:
    async with open_session().client() as client:
        reply: dict[str, Any] = await client.get("list_workflows")
        return reply
