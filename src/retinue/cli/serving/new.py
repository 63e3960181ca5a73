"""``retinue new``: create the folder of a new agent."""

from __future__ import annotations

import re
import shutil
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

import click

from retinue.cli.output import command_line, module_command

NAME = re.compile(r"[a-z][a-z0-9]*(?:[._-][a-z0-9]+)*")
MAX_NAME_CHARS = 64
TEMPLATE_NAME = "my-agent"
"""The placeholder for the name in the templates."""

SUFFIX = ".txt"
"""Prevents tools that scan for Python code from treating a template as part of Retinue."""


@click.command()
@click.argument("name")
def new(name: str) -> None:
    """Create the folder of a new agent.

    NAME is the folder and the agent's name. The folder holds agent.py with one skill, agent.json,
    a test with its pytest.ini, and a README.
    """
    from retinue.core.errors import InvalidSettingError, StateError
    from retinue.storage.files import storage_errors

    if not NAME.fullmatch(name) or len(name) > MAX_NAME_CHARS:
        raise InvalidSettingError(
            "NAME",
            f"{name!r} is not an agent name",
            remedy="use lower-case letters and digits, separated by - . or _, such as word-agent",
        )
    folder = Path(name)
    try:
        with storage_errors(folder):
            folder.mkdir()
            try:
                for file, text in read_templates(name).items():
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
    click.echo(f"Created {name}/ with agent.py, agent.json, test_agent.py, pytest.ini and README.md. Try:")
    retinue = command_line()
    needed = "" if find_spec("pytest") else "      (needs: pip install pytest)"
    click.echo(f"  {retinue} serve {name}/agent.json")
    click.echo(f"""  {retinue} call greet '{{"name": "Ada"}}'      (in another terminal)""")
    click.echo(f"  {module_command('pytest')} {name}{needed}")


def read_templates(name: str) -> dict[str, str]:
    """Map each file name to its text for a new agent ``name``."""
    folder = resources.files("retinue.cli.serving").joinpath("templates", "agent")
    return {
        file.name.removesuffix(SUFFIX): file.read_text("utf-8").replace(TEMPLATE_NAME, name)
        for file in folder.iterdir()
        if file.name.endswith(SUFFIX)
    }
