"""What a team must be before this state runs it: version, Retinue, form of data, programs of this machine."""

from __future__ import annotations

import shutil
from importlib.metadata import version as version_of
from importlib.util import find_spec
from pathlib import Path

import semver

from retinue.core.errors import InvalidSettingError, TeamRefusedError
from retinue.runtime.teams.store import TeamRow
from retinue.team.fields import is_version_in
from retinue.team.package import Team


def check_version(team: Team, row: TeamRow) -> None:
    """Raise TeamRefusedError for an older version, and for another digest of the version that runs."""
    version = semver.Version.parse(team.version)
    if row.highest and version < semver.Version.parse(row.highest):
        problem = f"version {team.version} is older than {row.highest}, which ran here"
        raise TeamRefusedError("downgrade", team.name, problem)
    if row.active not in (None, team.digest) and row.version == team.version:
        problem = f"version {team.version} runs with another digest, {str(row.active)[:19]}…"
        remedy = "give the new one a higher version, or replace it: --downgrade"
        raise TeamRefusedError("downgrade", team.name, problem, remedy=remedy)


def check_requires(team: Team) -> None:
    """Raise TeamRefusedError unless this Retinue is one that the team requires."""
    own = version_of("retinue")
    required = team.definition.requires
    if required is None:
        return
    try:
        fits = is_version_in(own, required)
    except ValueError:
        fits = False
    if not fits:
        remedy = "install a Retinue that fits"
        raise TeamRefusedError(
            "requires", team.name, f"it requires Retinue {required}; this is {own}", remedy=remedy
        )


def check_data(team: Team, form: int, *, is_down: bool, folder: Path) -> None:
    """Raise TeamRefusedError for a team that reads data of a newer form than its own.

    ``form`` is that of the digest that runs or that has run last, and ``folder`` has its data.
    """
    if team.definition.data < form:
        last = "the one before" if is_down else "the running one"
        problem = f"its data has form {team.definition.data}, that of {last} {form}"
        remedy = f"move {folder} away" if is_down else f"stop the team (retinue down), and move {folder} away"
        raise TeamRefusedError("data", team.name, problem, remedy=remedy)


def check_programs(team: Team) -> None:
    """Raise InvalidSettingError for missing programs, before anything is fetched."""
    missing = []
    if any(table.npm for table in team.definition.imports.values()):
        missing += [tool for tool in ("npm", "node") if shutil.which(tool) is None]
    needs_python = any(locked.lock for locked in team.lock.agents.values()) or any(
        table.pypi for table in team.definition.imports.values()
    )
    if needs_python and shutil.which("uv") is None and find_spec("ensurepip") is None:
        missing.append("uv (or Python with ensurepip)")
    if missing:
        remedy = "install them: pip install uv; npm and node with Node.js"
        raise InvalidSettingError(team.name, f"missing programs: {', '.join(missing)}", remedy=remedy)
