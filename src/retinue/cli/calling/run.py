"""``retinue run`` starts a workflow and follows it to its end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retinue.cli.calling.result_files import out_option, print_result
from retinue.cli.options import budget_options, hub_option, join_budget, json_option, read_object
from retinue.cli.output import working
from retinue.cli.session import open_session, run_command

if TYPE_CHECKING:
    from retinue.workflows.definitions.loading import Loaded

FILE_ENDINGS = frozenset({".yaml", ".yml", ".json"})

_CODE = re.compile(r"(.+\.py)(?::(.+))?")
"""A file with workflows in Python, and the name of one of them."""


@click.command()
@click.argument("workflow", metavar="FILE[:NAME]|NAME[@TAG]")
@click.argument("given", metavar="[INPUT]", default="{}")
@click.option("--id", "run_id", metavar="ID", help="Id of the run; the same id returns the same run.")
@click.option("--agent", "agents", metavar="STEP=NAME", multiple=True, help="Use this agent for a step.")
@click.option(
    "--timeout", "timeouts", metavar="STEP=TIME", multiple=True, help="Time limit of a step, such as 5m."
)
@budget_options
@hub_option
@out_option
@json_option
def run(
    workflow: str,
    given: str,
    run_id: str | None,
    agents: tuple[str, ...],
    timeouts: tuple[str, ...],
    tokens: int | None,
    dollars: float | None,
    hub: str | None,
    out: str | None,
    as_json: bool,
) -> None:
    """Run a workflow and show its steps.

    FILE is a definition in YAML or JSON, or a Python file with workflows, whose NAME is needed where it has
    several; this process then executes the run, and a worker with the file continues it. NAME is a stored
    workflow (see: retinue workflows); auto chooses a workflow by the input's prompt. INPUT is a JSON object;
    @FILE reads it from a file, - from standard input. Steps are shown on standard error as they end, and in
    a terminal what a step writes or reports meanwhile; the output is printed as JSON. STEP is a step's id or
    position.
    """
    code = _CODE.fullmatch(workflow)
    loaded = None if code else _read_workflow(workflow)
    overrides = {"agents": _read_pairs("--agent", agents), "timeouts": _read_pairs("--timeout", timeouts)}
    overrides = {kind: pairs for kind, pairs in overrides.items() if pairs}
    values = read_object(given, "input")
    budget = join_budget(tokens, dollars)
    if code is not None:
        running = _run_code(code[1], code[2], values, run_id, overrides, budget, hub)
    else:
        running = _run(loaded or workflow, values, run_id, overrides, budget, hub)
    output = run_command(running)
    print_result(output, (), out, as_json=as_json)


def _read_pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    from retinue.core.errors import InvalidSettingError

    pairs: dict[str, str] = {}
    for text in texts:
        step, mark, value = text.partition("=")
        if not mark or not step or not value:
            raise InvalidSettingError(option, f"{text!r} is not a pair", remedy=f"write {option} STEP=VALUE")
        pairs[step] = value
    return pairs


def _read_workflow(text: str) -> Loaded | None:
    """The checked definition in a file; None for the name of a stored workflow."""
    path = Path(text)
    if path.suffix not in FILE_ENDINGS and not path.is_file():
        return None
    from retinue.workflows.definitions.loading import load

    return load(read_definition(path), source=text)


def read_definition(path: Path) -> str:
    """The text of a definition's file; raises InvalidSettingError."""
    from retinue.core.errors import InvalidSettingError
    from retinue.workflows.definitions.documents import MAX_TEXT_BYTES

    try:
        with path.open(encoding="utf-8") as file:
            return file.read(MAX_TEXT_BYTES + 1)  # one more than fits, which is refused as too large
    except FileNotFoundError:
        raise InvalidSettingError("FILE", f"no file {path}", remedy="check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettingError(
            "FILE", f"{path} cannot be read: {error}", remedy="check the file"
        ) from error


async def _run_code(
    file: str,
    name: str | None,
    values: dict[str, Any],
    run_id: str | None,
    overrides: dict[str, Any],
    budget: dict[str, float] | None,
    hub: str | None,
) -> Any:
    """Run a workflow of a Python file, which this process hosts meanwhile."""
    from retinue.runtime.commands.client import RunFollower, open_hosting_client

    session = open_session()
    chosen = session.choose_hub(hub)
    async with open_hosting_client(session.settings, session.state, file, name, hub=chosen) as hosting:
        with working("running") as echo:
            follower = RunFollower(hosting.client, echo, echo.now, shows_reports=echo.is_live)
            return await follower.run(hosting.workflow, values, run_id, overrides, budget)


async def _run(
    workflow: str | Loaded,
    values: dict[str, Any],
    run_id: str | None,
    overrides: dict[str, Any],
    budget: dict[str, float] | None,
    hub: str | None,
) -> Any:
    from retinue.runtime.commands.client import RunFollower

    async with open_session().hub_client(hub) as client:
        with working("running") as echo:
            follower = RunFollower(client, echo, echo.now, shows_reports=echo.is_live)
            if isinstance(workflow, str):
                return await follower.run(workflow, values, run_id, overrides, budget)
            return await follower.run_file(workflow, values, run_id, overrides, budget)
