"""``retinue workflows`` lists workflows; ``retinue workflows check`` checks files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retinue.cli.calling.run import read_definition
from retinue.cli.options import hub_option, json_option
from retinue.cli.output import clean, note, print_json, print_table, warn
from retinue.cli.session import open_session, run_command

if TYPE_CHECKING:
    from retinue.core.errors import DefinitionError, RetinueError

Json = dict[str, Any]


@click.group(invoke_without_command=True)
@hub_option
@json_option
@click.pass_context
def workflows(context: click.Context, hub: str | None, as_json: bool) -> None:
    """List the workflows, or check files.

    Lists the built-in workflows, those in the folder of custom workflows (workflows/ in the state folder)
    and those published in the registries.
    """
    if context.invoked_subcommand is None:
        _print_list(hub, as_json)


def _print_list(hub: str | None, as_json: bool) -> None:
    reply = run_command(_list(hub))
    if as_json:
        print_json(reply)
        return
    rows = reply["workflows"]
    readable = [row for row in rows if "error" not in row]
    if readable:
        print_table(
            ("NAME", "FROM", "STEPS", "SKILLS", "DESCRIPTION"),
            [
                (
                    row["name"],
                    row.get("origin", "built-in"),
                    row.get("steps"),
                    row.get("skills"),
                    row.get("description"),
                )
                for row in readable
            ],
        )
    else:
        note("no workflows yet; publish one: retinue publish flow.yaml")
    for row in rows:
        if "error" in row:
            warn(f"{row['name']}: {row['error']}")


async def _list(hub: str | None) -> dict[str, Any]:
    async with open_session().hub_client(hub) as client:
        reply: dict[str, Any] = await client.get("list_workflows")
        return reply


@workflows.command()
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=click.Path())
@hub_option
@json_option
@click.pass_context
def check(context: click.Context, files: tuple[str, ...], hub: str | None, as_json: bool) -> None:
    """Check definitions in FILE… without running them.

    Prints each fault with file, line, column and remedy, and exits with 1 if there is one. While the hub
    runs, each definition is also checked against the mesh. A warning alone is no fault.
    """
    texts = {file: _inspect(file) for file in files}
    hub_url = run_command(_check_against_mesh(texts, hub))
    is_valid = all(row["valid"] for row in texts.values())
    if as_json:
        print_json({"valid": is_valid, "hub": hub_url, "files": list(texts.values())})
    else:
        for row in texts.values():
            for line in _draw(row):
                click.echo(line)
        if hub_url is None:
            note("no hub is running: skills and arguments were not checked")
    context.exit(0 if is_valid else 1)


def _inspect(file: str) -> Json:
    """The result of one file by its text alone."""
    from retinue.core.errors import InvalidSettingError
    from retinue.workflows.definitions.loading import inspect_text

    row: Json = {"file": file, "valid": False, "problems": [], "warnings": []}
    try:
        text = read_definition(Path(file))
    except InvalidSettingError as error:
        return row | {"problems": [_render_unreadable(error)]}
    loaded, faults = inspect_text(text, source=file)
    if loaded is not None:
        row["name"] = loaded.definition.name
    return row | {"valid": not faults, "problems": [_render(fault) for fault in faults]}


def _render(fault: DefinitionError) -> Json:
    return {"line": fault.line, "column": fault.column, "message": fault.problem, "remedy": fault.remedy}


def _render_unreadable(error: RetinueError) -> Json:
    return {"line": 0, "column": 0, "message": error.message, "remedy": error.remedy}


async def _check_against_mesh(rows: Mapping[str, Json], hub: str | None) -> str | None:
    """Add what the running hub finds in each valid file; the URL of the hub, None without one."""
    session = open_session()
    chosen = session.choose_hub(hub)
    if chosen is None:
        return None
    async with session.client(chosen) as client:
        for file, row in rows.items():
            if row["valid"]:
                reply = await client.get("check_workflow", {"text": read_definition(Path(file))})
                row |= {key: reply[key] for key in ("valid", "problems", "warnings")}
        return client.hub_url


def _draw(row: Json) -> Iterator[str]:
    for problem in row["problems"]:
        yield f"{_place(row['file'], problem)}: {clean(problem['message'])}{_remedy(problem)}"
    for warning in row["warnings"]:
        yield f"{_place(row['file'], warning)}: warning: {clean(warning['message'])}{_remedy(warning)}"
    if row["valid"]:
        yield f"{row['file']}: ok"


def _place(file: str, problem: Json) -> str:
    parts = [str(problem[key]) for key in ("line", "column") if problem.get(key)]
    return ":".join([file, *parts])


def _remedy(problem: Json) -> str:
    return f" — {clean(problem['remedy'])}" if problem.get("remedy") else ""
