"""The values of the secrets of a team: from a file of the person, and from systemd credentials."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from retinue.core.errors import InvalidSettingError
from retinue.core.text import hide_always
from retinue.runtime.teams.store import TeamRow, TeamStore
from retinue.team.package import Team


def find_secrets(store: TeamStore, row: TeamRow, team: Team, file: Path | None) -> dict[str, str]:
    """The values of all declared secrets. Raises InvalidSettingError with all missing names.

    A value that the command gets wins: of the file, of its environment, of a credential of systemd, in this
    order. Others are those of the digest that runs, or ran before.
    """
    known = [digest for digest in (row.active, row.before, team.digest) if digest is not None]
    places: list[Mapping[str, str]] = [] if file is None else [read_secrets_file(file)]
    places.append(os.environ)
    if folder := os.environ.get("CREDENTIALS_DIRECTORY"):
        places.append(read_credentials(Path(folder), team.definition.secrets))
    places += [store.read_secrets(row, digest) for digest in known]
    values: dict[str, str] = {}
    for name in team.definition.secrets:
        if (value := next((place[name] for place in places if place.get(name)), None)) is not None:
            values[name] = value
    missing = [f"{name} ({text})" for name, text in team.definition.secrets.items() if name not in values]
    if missing:
        remedy = "set the variables, or write NAME=VALUE lines into a file of mode 0600: --secrets FILE"
        raise InvalidSettingError(team.name, f"secrets are missing: {', '.join(missing)}", remedy=remedy)
    hide_always(values.values())
    return values


def read_secrets_file(path: Path) -> dict[str, str]:
    """The ``NAME=VALUE`` lines of a file that only its owner reads. Raises InvalidSettingError."""
    try:
        if path.stat().st_mode & 0o077:
            problem = f"others may read {path}"
            raise InvalidSettingError("--secrets", problem, remedy=f"chmod 600 {path}")
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettingError("--secrets", f"{path} cannot be read", remedy="check the file") from error
    pairs = (line.partition("=") for line in lines if line.strip() and not line.startswith("#"))
    return {name.strip(): value.strip() for name, mark, value in pairs if mark}


def read_credentials(folder: Path, names: Mapping[str, str]) -> dict[str, str]:
    """The credentials that systemd gives this process, by the names of secrets."""
    values = {}
    for name in names:
        try:
            values[name] = (folder / name).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError):
            continue
    return values
