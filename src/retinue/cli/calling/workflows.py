"""``retinue workflows`` lists workflows; ``retinue workflows check`` checks files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retinue.cli.calling.run import read_definition
from retinue.cli.findings import render_place, render_remedy
from retinue.cli.options import hub_option, json_option
from retinue.cli.output import clean, note, print_json, print_table, warn
from retinue.cli.session import ask_hub, open_session, run_command

if TYPE_CHECKING:
    from retinue.core.errors import DefinitionError, RetinueError

Json = dict[str, Any]

CODE_ENDING = ".py"
"""The ending of files with workflows in Python."""


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
    reply = ask_hub("list_workflows", {}, hub)
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
            cut="DESCRIPTION",
        )
    else:
        note("no workflows yet; publish one: retinue publish flow.yaml")
    for row in rows:
        if "error" in row:
            warn(f"{row['name']}: {row['error']}")


@workflows.command()
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=click.Path())
@hub_option
@json_option
@click.pass_context
def check(context: click.Context, files: tuple[str, ...], hub: str | None, as_json: bool) -> None:
    """Check definitions in FILE… without running them; a Python file is imported.

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
    if file.endswith(CODE_ENDING):
        return _inspect_code(file, row)
    try:
        text = read_definition(Path(file))
    except InvalidSettingError as error:
        return row | {"problems": [_render_unreadable(error)]}
    loaded, faults = inspect_text(text, source=file)
    if loaded is not None:
        row["name"] = loaded.definition.name
    return row | {"valid": not faults, "problems": [_render(fault) for fault in faults]}


def _inspect_code(file: str, row: Json) -> Json:
    """The result of a file with workflows in Python, which is imported."""
    from retinue.core.errors import InvalidSettingError
    from retinue.flows.determinism import find_hints
    from retinue.flows.modules import load_workflows

    try:
        hosted = load_workflows(file)
    except InvalidSettingError as error:
        return row | {"problems": [_render_unreadable(error)]}
    warnings = [
        {"line": hint.line, "column": hint.column, "message": hint.message, "remedy": hint.remedy}
        for workflow in hosted
        for hint in find_hints(workflow)
    ]
    name = ", ".join(workflow.name for workflow in hosted)
    digest = hosted[0].place.digest if hosted else None
    return row | {"valid": True, "name": name, "digest": digest, "warnings": warnings}


def _render(fault: DefinitionError) -> Json:
    return {"line": fault.line, "column": fault.column, "message": fault.problem, "remedy": fault.remedy}


def _render_unreadable(error: RetinueError) -> Json:
    return {"line": 0, "column": 0, "message": error.message, "remedy": error.remedy}


async def _check_against_mesh(rows: Mapping[str, Json], hub: str | None) -> str | None:
    """Add what the running hub finds in each valid file; the URL of the hub, None without one.

    Without a hub, add what the definition alone shows.
    """
    session = open_session()
    valid = {file: row for file, row in rows.items() if row["valid"] and not file.endswith(CODE_ENDING)}
    chosen = session.choose_hub(hub)
    if chosen is None:
        for file, row in valid.items():
            _add_findings(row, await _inspect_without_mesh(file))
        return None
    async with session.client(chosen) as client:
        for file, row in valid.items():
            reply = await client.get("check_workflow", {"text": read_definition(Path(file))})
            row |= {"valid": reply["valid"], "problems": reply["problems"]}
            _add_findings(row, reply["warnings"])
        return client.hub_url


def _add_findings(row: Json, findings: Sequence[Json]) -> None:
    """Add the findings: what would end a run as a problem, the others as warnings."""
    for finding in findings:
        is_problem = finding["blocks_run"]
        row["problems" if is_problem else "warnings"].append(
            {key: value for key, value in finding.items() if key != "blocks_run"}
        )
    row["valid"] = not row["problems"]


async def _inspect_without_mesh(file: str) -> list[Json]:
    from retinue.workflows.definitions.loading import load
    from retinue.workflows.preflight import KnownSkill, inspect_with_mesh

    async def know_nothing(skill: str, agent: str | None, version: str | None) -> KnownSkill:
        return KnownSkill()

    findings = await inspect_with_mesh(load(read_definition(Path(file)), source=file), {}, know_nothing)
    return [_render(finding.fault) | {"blocks_run": finding.blocks} for finding in findings]


def _draw(row: Json) -> Iterator[str]:
    for problem in row["problems"]:
        yield f"{render_place(row['file'], problem)}: {clean(problem['message'])}{render_remedy(problem)}"
    for warning in row["warnings"]:
        text = f"warning: {clean(warning['message'])}{render_remedy(warning)}"
        yield f"{render_place(row['file'], warning)}: {text}"
    if row["valid"]:
        yield f"{row['file']}: ok{f' ({digest})' if (digest := row.get('digest')) else ''}"
