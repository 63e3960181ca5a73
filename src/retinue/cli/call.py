"""``retinue call``: one call of one skill."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from retinue.cli.completion import complete_agent, complete_skill
from retinue.cli.options import json_option, read_object
from retinue.cli.output import note, print_json, warn
from retinue.cli.session import open_session, run_command
from retinue.core.errors import CallTimedOutError, is_callers_time

if TYPE_CHECKING:
    from retinue.core.call import Outcome


@click.command()
@click.argument("skill", shell_complete=complete_skill)
@click.argument("arguments", metavar="[JSON]", default="{}")
@click.option("--agent", metavar="NAME", shell_complete=complete_agent, help="Only this agent.")
@click.option("--version", metavar="RANGE", help="Only agents in these versions, such as '>=1.2,<2'.")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="S",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Give up after so many seconds.",
)
@json_option
def call(
    skill: str, arguments: str, agent: str | None, version: str | None, timeout_s: float, as_json: bool
) -> None:
    """Call a skill, whoever offers it.

    JSON is an object with what the skill's input schema asks for; - reads it from standard input.
    The result is printed as JSON.
    """
    given = read_object(arguments, "arguments")
    outcome = run_command(_call(skill, given, agent=agent, version=version, timeout_s=timeout_s))
    for warning in outcome.warnings:
        warn(warning)
    print_json(outcome.value, compact=as_json)
    if not as_json and outcome.agent is not None and sys.stderr.isatty():
        note(f"{outcome.agent} {outcome.version or ''} · {outcome.duration_ms:.0f} ms")


async def _call(skill: str, arguments: dict[str, Any], **options: Any) -> Outcome:
    async with open_session().client() as client:
        began = time.monotonic()
        outcome = await client.ask(skill, arguments, **options)
        # a skill in between may have given its own calls less
        if is_callers_time(outcome.error) and time.monotonic() - began > 0.9 * options["timeout_s"]:
            raise CallTimedOutError(skill, options["timeout_s"], layer="caller", setting="--timeout")
        outcome.get()
        return outcome
