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
@click.argument("workflow", metavar="FILE|NAME[@TAG]")
@click.argument("given", metavar="[INPUT]", default="{}")
@click.option("--id", "run_id", metavar="ID", help="The run's id: the same id again gives the same run.")
@click.option("--agent", "agents", metavar="STEP=NAME", multiple=True, help="Let this agent do a step.")
@click.option(
    "--timeout", "timeouts", metavar="STEP=TIME", multiple=True, help="A step's time limit, as in 5m."
)
@json_option
def run(
    workflow: str,
    given: str,
    run_id: str | None,
    agents: tuple[str, ...],
    timeouts: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run a workflow and watch its steps.

    FILE is a definition in YAML or JSON, NAME a stored one (see: retinue workflows), auto chooses one
    by the input's prompt. INPUT is a JSON object; - reads it from standard input. Each step is shown
    on standard error as it ends; the output is printed as JSON. STEP is a step's id or position.
    """
    asked = _read_workflow(workflow)
    overrides = {"agents": _read_pairs("--agent", agents), "timeouts": _read_pairs("--timeout", timeouts)}
    overrides = {kind: pairs for kind, pairs in overrides.items() if pairs}
    output = run_command(_run(asked, read_object(given, "input"), run_id, overrides))
    print_json(output, compact=as_json)


def _read_pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    from retinue.core.errors import InvalidSettingError

    pairs: dict[str, str] = {}
    for text in texts:
        step, mark, value = text.partition("=")
        if not mark or not step or not value:
            raise InvalidSettingError(option, f"{text!r} is no pair", remedy=f"write {option} STEP=VALUE")
        pairs[step] = value
    return pairs


def _read_workflow(text: str) -> str | dict[str, Any]:
    """A stored workflow's name as it is; a file as the checked definition in it."""
    path = Path(text)
    if path.suffix not in FILE_ENDINGS and not path.is_file():
        return text
    from retinue.core.errors import InvalidSettingError
    from retinue.workflows.definitions.loading import load_definition

    try:
        source = path.read_text("utf-8")
    except FileNotFoundError:
        raise InvalidSettingError("FILE", f"no file {text}", remedy="check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettingError("FILE", f"{text} cannot be read: {error}", remedy="check it") from error
    return load_definition(source, source=text).to_json()


async def _run(
    workflow: str | dict[str, Any], given: dict[str, Any], run_id: str | None, overrides: dict[str, Any]
) -> Any:
    from retinue.apps.following import Follower

    async with open_session().client() as client:
        with working("running") as say:
            return await Follower(client, say).run(workflow, given, run_id, overrides)
