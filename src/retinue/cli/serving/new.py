"""``retinue new``: create the folder of an agent or a team, a workflow, or an agent in Markdown."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path

import click

from retinue.cli.output import command_line, module_command

NAME = re.compile(r"[a-z][a-z0-9]*(?:[._-][a-z0-9]+)*")
MAX_NAME_CHARS = 64
TEMPLATE_NAME = "my-agent"
"""The placeholder for the name in the templates."""

TEAM_TEMPLATE_NAME = "my-team"
WORKFLOW_TEMPLATE_NAME = "my-workflow"

SUFFIX = ".txt"
"""Prevents tools that scan for Python code from treating a template as part of Retinue."""


@click.command()
@click.argument("name")
@click.option("--workflow", is_flag=True, help="Create the workflow NAME.yaml instead.")
@click.option("--think", is_flag=True, help="Create the agent in Markdown NAME.md instead.")
@click.option("--team", is_flag=True, help="Create the folder of the team NAME instead.")
def new(name: str, workflow: bool, think: bool, team: bool) -> None:
    """Create the folder of a new agent, or a workflow.

    NAME is the folder and the agent's name. The folder holds agent.py with one skill, agent.json,
    a test with its pytest.ini, and a README. With --workflow, NAME.yaml is a workflow, and
    workflow.schema.json in the same folder lets editors complete and check it. With --think, NAME.md is
    an agent in Markdown: a language model that answers with skills of the mesh. With --team, the folder
    holds team.toml, a Python agent and a workflow, which retinue pack makes one digest of.
    """
    from retinue.core.errors import InvalidSettingError

    if workflow + think + team > 1:
        raise click.UsageError("--workflow, --think and --team exclude each other")
    if not NAME.fullmatch(name) or len(name) > MAX_NAME_CHARS or (team and "." in name):
        kind, example = "an agent", "word-agent"
        if workflow or team:
            kind, example = ("a workflow", "word-flow") if workflow else ("a team", "editorial")
        marks = "- or _" if team else "- . or _"
        raise InvalidSettingError(
            "NAME",
            f"{name!r} is not {kind} name",
            remedy=f"use lower-case letters and digits, separated by {marks}, such as {example}",
        )
    if team:
        _create_team(name)
    elif think:
        _create_markdown(name)
    elif workflow:
        _create_workflow(name)
    else:
        _create_agent(name)


def _create_folder(name: str, texts: Mapping[str, str]) -> None:
    """Write a new folder with files; raises InvalidSettingError if there is one, StateError."""
    from retinue.core.errors import InvalidSettingError, StateError
    from retinue.storage.files import storage_errors

    folder = Path(name)
    try:
        with storage_errors(folder):
            folder.mkdir()
            try:
                for file, text in texts.items():
                    (folder / file).parent.mkdir(parents=True, exist_ok=True)
                    (folder / file).write_text(text, "utf-8")
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
    except StateError as error:
        if isinstance(error.__cause__, FileExistsError):
            raise InvalidSettingError(
                "NAME", f"{folder} exists", remedy="choose another name, or move the folder away"
            ) from None
        raise


def _create_agent(name: str) -> None:
    _create_folder(name, read_templates(name))
    click.echo(f"Created {name}/ with agent.py, agent.json, test_agent.py, pytest.ini and README.md. Try:")
    retinue = command_line()
    needed = "" if find_spec("pytest") else "      (needs: pip install pytest)"
    click.echo(f"  {retinue} serve {name}/agent.json")
    click.echo(f"""  {retinue} call greet '{{"name": "Ada"}}'      (in another terminal)""")
    click.echo(f"  {module_command('pytest')} {name}{needed}")


def _create_team(name: str) -> None:
    folder = resources.files("retinue.cli.serving").joinpath("templates", "team")
    texts = {
        path.removesuffix(SUFFIX).replace(TEAM_TEMPLATE_NAME, name): text.replace(TEAM_TEMPLATE_NAME, name)
        for path, text in _read_tree(folder)
    }
    _create_folder(name, texts)
    click.echo(f"Created {name}/ with {', '.join(sorted(texts))}. Try:")
    retinue = command_line()
    click.echo(f"  {retinue} lock {name}")
    click.echo(f"  {retinue} pack {name}")
    click.echo(f"  {retinue} up {name}")


def _read_tree(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, str]]:
    """The paths and texts of the templates below a folder."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _read_tree(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(SUFFIX):
            yield f"{prefix}{entry.name}", entry.read_text("utf-8")


def _create_file(file: Path, template: Traversable, placeholder: str, name: str) -> None:
    """Write a new file of a template; raises InvalidSettingError if there is one."""
    from retinue.core.errors import InvalidSettingError
    from retinue.storage.files import storage_errors

    with storage_errors(file):
        try:
            with file.open("x", encoding="utf-8") as created:
                created.write(template.read_text("utf-8").replace(placeholder, name))
        except FileExistsError:
            raise InvalidSettingError(
                "NAME", f"{file} exists", remedy="choose another name, or move the file away"
            ) from None


def _create_markdown(name: str) -> None:
    file = Path(f"{name}.md")
    template = resources.files("retinue.cli.serving").joinpath("templates", "think", "agent.md.txt")
    _create_file(file, template, TEMPLATE_NAME, name)
    retinue = command_line()
    click.echo(f"Created {file}. Try:")
    click.echo(f"  {retinue} serve {file}")
    click.echo(f"""  {retinue} call {name} '{{"prompt": "What can you do?"}}'      (in another terminal)""")


def _create_workflow(name: str) -> None:
    from retinue.storage.files import storage_errors
    from retinue.workflows.definitions.editor_schema import FILE_NAME, render_schema

    file, schema = Path(f"{name}.yaml"), Path(FILE_NAME)
    template = resources.files("retinue.cli.serving").joinpath("templates", "workflow", "workflow.yaml.txt")
    _create_file(file, template, WORKFLOW_TEMPLATE_NAME, name)
    with storage_errors(schema):
        schema.write_bytes(render_schema())  # that of this release, also where an older one lies there
    retinue = command_line()
    click.echo(f"Created {file} and {FILE_NAME}. Try:")
    click.echo(f"  {retinue} workflows check {file}")
    click.echo(
        f"""  {retinue} run {file} '{{"who": "Ada"}}'      (with the agent of: {retinue} new my-agent)"""
    )


def read_templates(name: str) -> dict[str, str]:
    """Map each file name to its text for a new agent ``name``."""
    folder = resources.files("retinue.cli.serving").joinpath("templates", "agent")
    return {
        file.name.removesuffix(SUFFIX): file.read_text("utf-8").replace(TEMPLATE_NAME, name)
        for file in folder.iterdir()
        if file.name.endswith(SUFFIX)
    }
