"""``retinue lock``, ``retinue pack`` and ``retinue diff``: make a digest of a team, and compare two."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retinue.cli.options import json_option, registry_option
from retinue.cli.output import note, print_json, warn, working
from retinue.cli.session import open_session, run_command

if TYPE_CHECKING:
    from retinue.runtime.commands.teams.comparing import Comparison
    from retinue.runtime.commands.teams.packing import PackedTeam

_folder_argument = click.argument(
    "folder", default=".", type=click.Path(file_okay=False, exists=True, path_type=Path)
)


@click.command()
@_folder_argument
@json_option
def lock(folder: Path, as_json: bool) -> None:
    """Write the hashes of everything that a team runs into team.lock.

    FOLDER has the file team.toml; default: this folder. Dependencies of Python agents (pyproject.toml in the
    folder of the agent) and imports from PyPI are locked with uv, imports from npm with npm; no script of a
    package is run. The agents are loaded once, to record what they offer. A model has no hash: the lock has
    its name only.
    """
    from retinue.runtime.commands.teams.locking import lock_team
    from retinue.runtime.teams.environments import Environments
    from retinue.runtime.teams.store import TeamStore

    session = open_session()
    with working("locking"):
        locked = lock_team(
            folder, Environments(TeamStore(session.state).environments, os.environ), os.environ
        )
    skills = sum(len(agent.skills) for agent in locked.agents.values())
    if as_json:
        print_json({"files": len(locked.files), "agents": len(locked.agents), "imports": len(locked.imports)})
        return
    click.echo(
        f"locked: files {len(locked.files)}, agents {len(locked.agents)}, skills {skills}, "
        f"imports {len(locked.imports)}"
    )


@click.command()
@_folder_argument
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write an OCI layout as one tar file instead (FILE.tar).",
)
@registry_option("Registry to pack into (http://host:port or a folder); default: the state folder.")
@click.option(
    "--vendor",
    is_flag=True,
    help="Add the packages of the locks, so that retinue up needs no index of packages.",
)
@click.option("--from-config", is_flag=True, help="Write team.toml from the retinue.toml of FOLDER instead.")
@json_option
def pack(
    folder: Path,
    output: Path | None,
    registry: str | None,
    vendor: bool,
    from_config: bool,
    as_json: bool,
) -> None:
    """Pack a team into one digest and sign it.

    FOLDER has the files team.toml and team.lock; default: this folder. Equal content gives an equal digest on
    every machine. Files that hold a known form of key, or the value of a secret of the team, are refused. The
    key of this state (retinue keys) signs the digest. With --vendor the wheels for this platform and each
    supported Python and the archives of npm are fetched, compared with the hashes of the locks, and packed;
    retinue up then uses only those. With --from-config nothing is packed: team.toml is
    written from the part of retinue.toml that a team may have, and the command lists the rest.
    """
    if from_config:
        _convert(folder, as_json)
        return
    from retinue.team.vendored import describe_vendored

    packed = run_command(_pack(folder, registry, output, vendor))
    team = packed.team
    if as_json:
        print_json(
            {
                "team": team.name,
                "version": team.version,
                "digest": team.digest,
                "key": packed.key,
                "place": packed.place,
                "files": len(team.files),
                "size_bytes": team.size_bytes,
                "vendored": describe_vendored(team.files),
            }
        )
        return
    click.echo(team.digest)
    note(
        f"packed {team.name} {team.version}: agents {len(team.definition.agents)}, "
        f"imports {len(team.definition.imports)}, workflows {len(team.workflows)}, files {len(team.files)}, "
        f"{team.size_bytes:,} bytes"
    )
    if vendored := describe_vendored(team.files):
        note(f"packages: {vendored}")
    note(f"in {packed.place}")
    if packed.key:
        note(f"signed with the key {packed.key}")
    else:
        warn("not signed, because signatures.sign is off: retinue up refuses it")


def _convert(folder: Path, as_json: bool) -> None:
    """Write ``team.toml`` from ``retinue.toml``; raises InvalidSettingError where there is one already."""
    from retinue.runtime.commands.teams.source import convert_settings

    conversion = convert_settings(folder)
    if as_json:
        print_json({"file": str(folder / "team.toml"), "left_out": list(conversion.left_out)})
        return
    click.echo(f"team.toml written; then: retinue lock {folder} && retinue pack {folder}")
    for line in conversion.left_out:
        warn(f"left out: {line}")


async def _pack(folder: Path, registry: str | None, output: Path | None, vendor: bool) -> PackedTeam:
    from retinue.core.errors import InvalidSettingError
    from retinue.runtime.commands.teams.commands import open_teams
    from retinue.runtime.commands.teams.places import FILE_ENDINGS

    if output is not None and not output.name.endswith(FILE_ENDINGS):
        remedy = f"name it {output.name}.tar"
        raise InvalidSettingError("--output", "retinue up knows a layout by its ending .tar", remedy=remedy)
    session = open_session()
    async with open_teams(session.settings, session.state) as teams:
        return await teams.pack(folder, registry=registry, output=output, vendor=vendor)


@click.command()
@click.argument("old", metavar="A")
@click.argument("new", metavar="B")
@json_option
def diff(old: str, new: str, as_json: bool) -> int:
    """Compare two digests of a team by what they can do.

    A and B are references as of retinue up; nothing of them is run. Exits with 0 if both are equal, with 1
    if they differ, and with 3 if B can do more: it has a new program, host, model, secret or receiver of one,
    may make calls that A may not make, or has fewer limits. BREAKING marks what callers have to follow.
    """
    compared = run_command(_diff(old, new))
    if as_json:
        print_json(compared.as_json())
        return compared.status
    for change in compared.changes:
        for line in change.render():
            click.echo("".join(character for character in line if character.isprintable()))
    words = {0: "the same", 1: "different", 3: "different, and B can do more"}
    note(f"{compared.old.name} {compared.old.version} and {compared.new.version}: {words[compared.status]}")
    return compared.status


async def _diff(old: str, new: str) -> Comparison:
    from retinue.runtime.commands.teams.commands import open_teams

    session = open_session()
    async with open_teams(session.settings, session.state) as teams:
        return await teams.compare(old, new)
