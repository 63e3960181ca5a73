"""``retinue run``: start a workflow and follow it to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from retinue.cli.options import json_option, read_object
from retinue.cli.output import print_json, working
from retinue.cli.session import open_session, run_command

FILE_ENDINGS = frozenset({".yaml", ".yml", ".json"})


@click.command()
@click.argument("workflow", metavar="FILE|NAME")
@click.argument("given", metavar="[INPUT]", default="{}")
@json_option
def run(workflow: str, given: str, as_json: bool) -> None:
    """Run a workflow and watch its steps.

    FILE is a definition in YAML or JSON, NAME a stored one (see: retinue workflows). INPUT is a JSON
    object; - reads it from standard input. Each step is shown on standard error as it ends; the
    output is printed as JSON.
    """
    asked = _read_workflow(workflow)
    output = run_command(_run(asked, read_object(given, "input")))
    print_json(output, compact=as_json)


def _read_workflow(text: str) -> str | dict[str, Any]:
    """A stored workflow's name as it is; a file as the checked definition in it."""
    path = Path(text)
    if path.suffix not in FILE_ENDINGS and not path.is_file():
        return text
    from retinue.core.errors import InvalidSettingError
    from retinue.workflows.loading import load_definition

    try:
        source = path.read_text("utf-8")
    except FileNotFoundError:
        raise InvalidSettingError("FILE", f"no file {text}", remedy="check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettingError("FILE", f"{text} cannot be read: {error}", remedy="check it") from error
    return load_definition(source, source=text).to_json()


async def _run(workflow: str | dict[str, Any], given: dict[str, Any]) -> Any:
    from retinue.apps.following import Follower

    async with open_session().client() as client:
        with working("running") as say:
            return await Follower(client, say).run(workflow, given)
