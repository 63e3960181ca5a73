"""``retinue stubs``: make a module with a typed function for each skill, or check the one that is kept."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retinue.cli.completion import complete_agent, complete_skill
from retinue.cli.options import hub_option
from retinue.cli.output import clean, note, warn_missing
from retinue.cli.session import open_session, run_command
from retinue.core.errors import InvalidSettingError

if TYPE_CHECKING:
    from retinue.client.stubs.module import Difference
    from retinue.client.stubs.section import StubSkill

STDOUT = "-"
_MAX_LISTED = 20


@click.command()
@click.argument("file", metavar="FILE.py", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--check", "is_check", is_flag=True, help="Write nothing; exit with 1 if FILE.py differs.")
@click.option(
    "--agent",
    "agents",
    metavar="GLOB",
    multiple=True,
    shell_complete=complete_agent,
    help="Only skills of these agents; repeatable.",
)
@click.option(
    "--skill",
    "skills",
    metavar="GLOB",
    multiple=True,
    shell_complete=complete_skill,
    help="Only these skills; repeatable.",
)
@click.option("--sync", "is_sync", is_flag=True, help="Functions for connect_sync(), without await.")
@hub_option
@click.pass_context
def stubs(
    context: click.Context,
    file: str,
    is_check: bool,
    agents: tuple[str, ...],
    skills: tuple[str, ...],
    is_sync: bool,
    hub: str | None,
) -> None:
    """Make a Python module with a typed function for each skill.

    The functions call the skills through the mesh of retinue.connect(), so that editors complete the
    parameters and type checkers check them. Equal skills give an equal file. With --check, for CI, the
    skills that were added, removed or changed since are printed. - prints the module.
    """
    from retinue.client.stubs.module import render_module

    kept = None if file == STDOUT else _read_kept(Path(file))
    chosen = run_command(_read_skills(agents, skills, hub))
    text = render_module(chosen, command=_command_of(file, agents, skills, is_sync), is_sync=is_sync)
    if is_check:
        context.exit(_check(file, kept, text))
    if file == STDOUT:
        click.echo(text, nl=False)
    elif kept == text:
        note(f"{file} is up to date: {len(chosen)} skills")
    else:
        _write(Path(file), text)
        click.echo(f"{file}: {len(chosen)} skills")


async def _read_skills(agents: tuple[str, ...], skills: tuple[str, ...], hub: str | None) -> list[StubSkill]:
    from retinue.client.stubs.offers import choose_skills, read_offers

    async with open_session().hub_client(hub) as client:
        offers, missing = await read_offers(client.get)
    warn_missing({"missing": missing})
    chosen = choose_skills(offers, agents, skills)
    if not chosen:
        problem = "no skill of the mesh fits --agent and --skill" if offers else "the mesh has no skills"
        raise InvalidSettingError("stubs", problem, remedy="list them: retinue find")
    return chosen


def _command_of(file: str, agents: tuple[str, ...], skills: tuple[str, ...], is_sync: bool) -> str:
    words = ["retinue", "stubs", Path(file).name]
    words += [word for glob in sorted(agents) for word in ("--agent", glob)]
    words += [word for glob in sorted(skills) for word in ("--skill", glob)]
    return shlex.join([*words, *(("--sync",) if is_sync else ())])


def _read_kept(path: Path) -> str | None:
    """The module in the file; None without a file. Raises InvalidSettingError for any other file."""
    from retinue.client.stubs.module import MADE_BY

    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidSettingError(
            str(path), f"cannot be read: {reason}", remedy="name another file"
        ) from None
    if text and not text.startswith(MADE_BY):
        raise InvalidSettingError(
            str(path),
            "this file was not made by retinue stubs",
            remedy="name another file, or remove this one",
        )
    return text


def _write(path: Path, text: str) -> None:
    """Raises StateError where the file cannot be written; then the old one is unchanged."""
    from retinue.storage.files import replace_file, storage_errors

    with storage_errors(path):
        replace_file(path, text.encode(), mode=0o644)


def _check(file: str, kept: str | None, text: str) -> int:
    from retinue.client.stubs.module import compare_modules

    difference = compare_modules(kept or "", text)
    if difference is None:
        note(f"{file} is up to date")
        return 0
    click.echo(f"{file} does not exist" if kept is None else f"{file} differs from the mesh")
    for line in _render_difference(difference):
        click.echo(f"  {line}")
    note(f"make it again: {text.split('Make it again: ', 1)[1].splitlines()[0]}")
    return 1


def _render_difference(difference: Difference) -> list[str]:
    lines = [
        f"{word}  {clean(skill)}"
        for word, skills in (
            ("added  ", difference.added),
            ("removed", difference.removed),
            ("changed", difference.changed),
        )
        for skill in skills
    ]
    if not lines:
        return ["no skill changed: it was edited, or made by another version of Retinue"]
    more = len(lines) - _MAX_LISTED
    return lines if more <= 0 else [*lines[:_MAX_LISTED], f"and {more} more"]
