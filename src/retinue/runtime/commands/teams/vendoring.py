"""``retinue pack --vendor``: fetches the wheels and npm archives that the locks of a team name.

pip and npm fetch them, with the settings of this user. What they bring counts only by its hash.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from retinue.core.errors import InvalidSettingError
from retinue.runtime.commands.teams.source import TeamSource
from retinue.runtime.teams.environments import run_installer, select_installer_variables
from retinue.team.files import ARCHIVES_LAYER, MAX_LAYER_BYTES, WHEELS_LAYER, TeamFile
from retinue.team.lock import TeamLock
from retinue.team.vendored import (
    LockedArchive,
    LockedWheel,
    check_vendored,
    choose_wheels,
    list_archives,
    list_lock_files,
)

FETCH_WITHIN_S = 600.0
_SPECS_AT_ONCE = 100

_OF_PIP = {
    "PIP_INDEX_URL": ("UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    "PIP_EXTRA_INDEX_URL": ("UV_INDEX", "UV_EXTRA_INDEX_URL"),
    "PIP_FIND_LINKS": ("UV_FIND_LINKS",),
    "PIP_CERT": ("SSL_CERT_FILE",),
}
"""The variables of uv that say the same as those of pip."""


def vendor_packages(source: TeamSource, lock: TeamLock, environ: Mapping[str, str]) -> list[TeamFile]:
    """The packages that the locks of a team name, each with the content of its hash.

    Wheels are those for this platform and every supported Python. Raises InvalidSettingError for what cannot
    be fetched, and for packages that are too large together.
    """
    files: dict[str, TeamFile] = {}
    contents = {file.path: file.content for file in source.files}
    for path in list_lock_files(lock):
        with TemporaryDirectory() as folder:
            if path.endswith(".json"):
                fetched = _fetch_archives(list_archives(contents[path]), Path(folder), environ)
            else:
                fetched = _fetch_wheels(contents[path], Path(folder), environ)
        files |= {file.path: file for file in fetched}
    for layer in (WHEELS_LAYER, ARCHIVES_LAYER):
        size_bytes = sum(len(file.content) + 4096 for file in files.values() if file.layer == layer)
        if size_bytes > MAX_LAYER_BYTES:
            problem = f"its {layer} have {size_bytes:,} bytes; a layer has at most {MAX_LAYER_BYTES:,}"
            raise InvalidSettingError("--vendor", problem, remedy="pack without --vendor")
    vendored = list(files.values())
    contents |= {file.path: file.content for file in vendored}
    rows = [file.row for file in vendored]
    check_vendored(rows, lock, lambda path: BytesIO(contents[path]), where=source.definition.name)
    return vendored


def _fetch_wheels(lock: bytes, folder: Path, environ: Mapping[str, str]) -> list[TeamFile]:
    variables = select_installer_variables(environ)
    for name, others in _OF_PIP.items():
        if name not in variables and (value := next((environ[o] for o in others if environ.get(o)), None)):
            variables[name] = value
    fetched: dict[LockedWheel, TeamFile] = {}
    pip: Sequence[str] = ()
    for version, wheels in choose_wheels(lock).items():
        missing = [wheel for wheel in wheels if wheel not in fetched]
        if not missing:
            continue
        pip = pip or _find_pip(folder, variables)
        requirements = folder / "requirements.txt"
        requirements.write_text("".join(map(_render_requirement, missing)), "utf-8")
        place = folder / "wheels"
        options = ("--no-deps", "--require-hashes", "--only-binary", ":all:", "--quiet", "--dest", str(place))
        command = (*pip, "download", *options, *_target_options(version), "-r", str(requirements))
        _run(command, folder, variables)
        for wheel in missing:
            content = _read(place / wheel.filename)
            if hashlib.sha256(content).hexdigest() != wheel.sha256:
                raise _not_fetched(wheel.name, wheel.version)
            fetched[wheel] = TeamFile(wheel.path, WHEELS_LAYER, content)
    return list(fetched.values())


def _render_requirement(wheel: LockedWheel) -> str:
    return f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n"


def _target_options(version: tuple[int, int]) -> tuple[str, ...]:
    """The options with which pip fetches wheels for another Python on this platform."""
    from packaging.tags import platform_tags

    digits = "".join(map(str, version))
    platforms = [option for tag in platform_tags() for option in ("--platform", tag)]
    python = ("--implementation", "cp", "--python-version", ".".join(map(str, version)))
    return (*python, "--abi", f"cp{digits}", *platforms)


def _find_pip(folder: Path, variables: Mapping[str, str]) -> tuple[str, ...]:
    """The command pip of this Python, or of a new environment in ``folder``."""
    if find_spec("pip") is not None:
        return sys.executable, "-m", "pip"
    if find_spec("ensurepip") is None:
        raise InvalidSettingError("--vendor", "pip is missing", remedy="install it, or pack without --vendor")
    environment = folder / "pip"
    _run((sys.executable, "-m", "venv", str(environment)), folder, variables)
    return str(environment / "bin" / "python"), "-m", "pip"


def _fetch_archives(
    archives: Sequence[LockedArchive], folder: Path, environ: Mapping[str, str]
) -> list[TeamFile]:
    variables = select_installer_variables(environ)
    place = folder / "archives"
    place.mkdir()
    specs = list(dict.fromkeys(f"{archive.name}@{archive.version}" for archive in archives))
    for start in range(0, len(specs), _SPECS_AT_ONCE):
        some = specs[start : start + _SPECS_AT_ONCE]
        options = ("--ignore-scripts", "--silent", "--pack-destination", str(place))
        _run(("npm", "pack", *options, *some), folder, variables)
    contents = [_read(path) for path in sorted(place.iterdir())]
    by_hash = {hashlib.sha512(content).hexdigest(): content for content in contents}
    for archive in archives:
        if archive.sha512 not in by_hash:
            raise _not_fetched(archive.name, archive.version)
    return [TeamFile(archive.path, ARCHIVES_LAYER, by_hash[archive.sha512]) for archive in archives]


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size <= MAX_LAYER_BYTES:
            return path.read_bytes()
    except OSError:
        return b""  # the caller tells that it has not the hash of the lock
    problem = f"{path.name} is over {MAX_LAYER_BYTES:,} bytes"
    raise InvalidSettingError("--vendor", problem, remedy="pack without --vendor")


def _not_fetched(name: str, version: str) -> InvalidSettingError:
    problem = f"the index does not have {name} {version} with the hash of the lock"
    return InvalidSettingError("--vendor", problem, remedy="use the index of the lock, or lock again")


def _run(arguments: Sequence[str], folder: Path, variables: Mapping[str, str]) -> None:
    complaint = run_installer(arguments, folder, variables, FETCH_WITHIN_S)
    if complaint is not None:
        program = "npm" if arguments[0] == "npm" else "pip"
        raise InvalidSettingError(
            "--vendor", f"{program}: {complaint}", remedy="check the network, try again"
        )
