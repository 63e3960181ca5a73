"""The values of the secrets of a team: from a file of the person, and from systemd credentials."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from retinue.core.errors import InvalidSettingError


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
