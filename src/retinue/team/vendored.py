"""The packages in a digest: wheels and npm archives that its locks name, for machines without an index.

``retinue pack --vendor`` puts them into the layers ``wheels`` and ``npm``. A wheel has the name of its file,
an archive of npm that of its SHA-512. Only wheels for one platform are there, those of all Pythons in
`PYTHONS`, so that the digest does not depend on the Python that packs.
"""

from __future__ import annotations

import hashlib
import platform
import tomllib
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader, BytesIO
from typing import TYPE_CHECKING, Any

import orjson

from retinue.core.errors import InvalidSettingError, TeamRefusedError
from retinue.team.files import ARCHIVES_LAYER, WHEELS_LAYER, FileRow
from retinue.team.lock import TeamLock

if TYPE_CHECKING:
    from packaging.pylock import Pylock
    from packaging.tags import Tag

VENDOR = "vendor"
"""The folder of the packages, below that of ``team.toml``."""

WHEELS = f"{VENDOR}/wheels"
ARCHIVES = f"{VENDOR}/npm"

PYTHONS = ((3, 11), (3, 12), (3, 13))
"""The versions of Python whose wheels are packed."""

_PATCHES = ("0", "99")
"""Markers such as ``python_full_version < "3.11.3"`` are evaluated for the first and the last patch."""

_CPUS = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "i686": "ia32"}
"""Machines under the names of npm."""


@dataclass(frozen=True, slots=True)
class LockedWheel:
    """A wheel that a PEP 751 lock names."""

    name: str
    version: str
    filename: str
    sha256: str

    @property
    def path(self) -> str:
        """Where the wheel is in a digest."""
        return f"{WHEELS}/{self.filename}"


@dataclass(frozen=True, slots=True)
class LockedArchive:
    """An archive that a ``package-lock.json`` names; ``sha512`` is in hex."""

    name: str
    version: str
    sha512: str

    @property
    def path(self) -> str:
        """Where the archive is in a digest."""
        return f"{ARCHIVES}/{self.sha512}.tgz"


def choose_wheels(lock: bytes) -> dict[tuple[int, int], list[LockedWheel]]:
    """The wheels of a PEP 751 lock for this platform, by version of Python.

    A version for which the lock has no wheels is left out. Raises InvalidSettingError where no version has.
    """
    from packaging import tags
    from packaging.markers import default_environment
    from packaging.pylock import PylockSelectError

    pylock = parse_pylock(lock)
    platforms = list(tags.platform_tags())
    chosen: dict[tuple[int, int], list[LockedWheel]] = {}
    problem = ""
    for version in PYTHONS:
        digits = "".join(map(str, version))
        fitting = [
            *tags.cpython_tags(version, [f"cp{digits}"], platforms),
            *tags.compatible_tags(version, f"cp{digits}", platforms),
        ]
        wheels: dict[LockedWheel, None] = {}
        text = ".".join(map(str, version))
        try:
            for patch in _PATCHES:
                version_keys = {"python_version": text, "python_full_version": f"{text}.{patch}"}
                environment = {**default_environment(), **version_keys}
                wheels |= dict.fromkeys(_select(pylock, environment, fitting))
        except (PylockSelectError, ValueError) as error:
            problem = f"Python {text}: {error}"
            continue
        chosen[version] = list(wheels)
    if not chosen:
        raise InvalidSettingError(
            "--vendor", f"the lock has no wheels for this platform: {problem[:300]}", remedy="leave it out"
        )
    return chosen


def choose_own_wheels(lock: bytes) -> list[LockedWheel]:
    """The wheels of a PEP 751 lock for this Python on this machine. Raises InvalidSettingError."""
    from packaging.pylock import PylockSelectError

    try:
        return list(_select(parse_pylock(lock), None, None))
    except (PylockSelectError, ValueError) as error:
        remedy = "run the team on a machine for which it has wheels"
        raise InvalidSettingError("pylock.toml", str(error)[:300], remedy=remedy) from None


def _select(
    pylock: Pylock, environment: Mapping[str, object] | None, fitting: Sequence[Tag] | None
) -> Iterator[LockedWheel]:
    from packaging.pylock import PackageWheel, PylockSelectError

    selection: Any = environment  # a TypedDict of the same keys
    for package, source in pylock.select(environment=selection, tags=fitting):
        if not isinstance(source, PackageWheel):
            raise PylockSelectError(f"{package.name} has no wheel for this platform")
        yield LockedWheel(
            package.name, str(package.version), source.filename, str(source.hashes.get("sha256", ""))
        )


def _list_wheels(lock: bytes) -> set[tuple[str, str]]:
    """Name of the file and SHA-256 of every wheel that a PEP 751 lock names."""
    return {
        (wheel.filename, str(wheel.hashes.get("sha256", "")))
        for package in parse_pylock(lock).packages
        for wheel in package.wheels or ()
    }


def parse_pylock(lock: bytes) -> Pylock:
    """The lock in the bytes of a ``pylock.toml``. Raises InvalidSettingError."""
    from packaging.pylock import Pylock, PylockValidationError

    try:
        return Pylock.from_dict(tomllib.loads(lock.decode()))
    except (ValueError, PylockValidationError) as error:
        raise InvalidSettingError(
            "pylock.toml", f"it cannot be read: {str(error)[:200]}", remedy="lock it again: retinue lock"
        ) from error


def list_archives(lock: bytes) -> list[LockedArchive]:
    """The archives of a ``package-lock.json`` that npm installs on this platform, each once.

    Raises InvalidSettingError.
    """
    archives: dict[LockedArchive, None] = {}
    for path, row in _read_rows(lock).items():
        if path and not row.get("dev") and _is_for_this_machine(row):
            name = str(row.get("name") or path.rpartition("node_modules/")[2])
            archives[LockedArchive(name, str(row.get("version", "")), _read_sha512(path, row))] = None
    return list(archives)


def use_archives(lock: bytes, folder: str) -> bytes:
    """The ``package-lock.json`` whose packages are the archives in ``folder``, an absolute path."""
    document = orjson.loads(lock)
    for path, row in _read_rows(lock).items():
        if path:
            address = f"file:{folder}/{_read_sha512(path, row)}.tgz"
            document["packages"][path] = {**row, "resolved": address}
    return orjson.dumps(document)


def _read_rows(lock: bytes) -> Mapping[str, Mapping[str, Any]]:
    try:
        rows = orjson.loads(lock)["packages"]
        if all(isinstance(row, dict) for row in rows.values()):
            return dict(rows)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise InvalidSettingError("package-lock.json", "it cannot be read", remedy="lock it again: retinue lock")


def _read_sha512(path: str, row: Mapping[str, Any]) -> str:
    """The SHA-512 of an archive in hex. Raises InvalidSettingError."""
    try:
        hashes = str(row["integrity"]).split()
        digest = b64decode(next(text for text in hashes if text.startswith("sha512-"))[7:], validate=True)
    except (KeyError, ValueError, StopIteration):
        digest = b""
    if len(digest) != hashlib.sha512().digest_size:
        problem = f"{path[:80]} has no SHA-512 of its archive"
        raise InvalidSettingError("package-lock.json", problem, remedy="lock it again: retinue lock")
    return digest.hex()


def _is_for_this_machine(row: Mapping[str, Any]) -> bool:
    """Whether npm installs a package here; only optional ones may be for other platforms."""
    if not row.get("optional"):
        return True
    machine = platform.machine().lower()
    own = {
        "os": platform.system().lower(),
        "cpu": _CPUS.get(machine, machine),
        "libc": platform.libc_ver()[0] or "musl",
    }
    return all(_permits(row.get(key), value) for key, value in own.items())


def _permits(values: Any, own: str) -> bool:
    if not isinstance(values, list) or not values:
        return True
    refused = {value[1:] for value in values if str(value).startswith("!")}
    permitted = {value for value in values if not str(value).startswith("!")}
    return own not in refused and (not permitted or own in permitted)


def check_vendored(
    rows: Iterable[FileRow],
    lock: TeamLock,
    open_file: Callable[[str], BytesIO | BufferedReader],
    *,
    where: str,
) -> None:
    """Raise TeamRefusedError unless each package is one that a lock names, and none is missing here.

    ``rows`` are those of all files of the team, which ``open_file`` opens by path.
    """
    wheels = {row.path: row.sha256 for row in rows if row.layer == WHEELS_LAYER}
    archives = {row.path for row in rows if row.layer == ARCHIVES_LAYER}
    if not wheels and not archives:
        return
    named_wheels: set[tuple[str, str]] = set()
    needed: dict[str, str] = {}
    for path in list_lock_files(lock):
        with open_file(path) as file:
            content = file.read()
        if path.endswith(".json"):
            needed |= {
                archive.path: f"{archive.name} {archive.version}" for archive in list_archives(content)
            }
        else:
            named_wheels |= _list_wheels(content)
            needed |= {wheel.path: f"{wheel.name} {wheel.version}" for wheel in choose_own_wheels(content)}
    for path, sha256 in wheels.items():
        if (path.removeprefix(f"{WHEELS}/"), sha256) not in named_wheels:
            raise TeamRefusedError("changed", where, f"no lock of the team names {path} with its hash")
    for path in archives:
        with open_file(path) as file:
            sha512 = hashlib.file_digest(file, "sha512").hexdigest()
        if path != f"{ARCHIVES}/{sha512}.tgz" or path not in needed:
            raise TeamRefusedError("changed", where, f"no lock of the team names {path[:40]}… with its hash")
    if missing := sorted(needed.keys() - wheels.keys() - archives):
        problem = f"it has no archive of {needed[missing[0]]} for this machine ({describe_machine()})"
        remedy = "use a digest that was packed for this platform, or one without --vendor"
        raise TeamRefusedError("platform", where, problem, remedy=remedy)


def list_lock_files(lock: TeamLock) -> list[str]:
    """The paths of the locks of packages, each once."""
    paths = (*(row.lock for row in lock.agents.values()), *(row.lock for row in lock.imports.values()))
    return list(dict.fromkeys(path for path in paths if path is not None))


def describe_machine() -> str:
    """Python and platform of this machine, for people."""
    return f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"


def describe_vendored(rows: Iterable[FileRow]) -> str:
    """How many packages of which platforms a digest has, for people; "" for none."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    wheels, archives, size_bytes = 0, 0, 0
    platforms: set[str] = set()
    for row in rows:
        if row.layer == WHEELS_LAYER:
            wheels += 1
            try:
                tags = parse_wheel_filename(row.path.rpartition("/")[2])[3]
            except InvalidWheelFilename:
                continue
            platforms |= {tag.platform for tag in tags} - {"any"}
        elif row.layer == ARCHIVES_LAYER:
            archives += 1
        else:
            continue
        size_bytes += row.size_bytes
    if not wheels and not archives:
        return ""
    only = f", for {', '.join(sorted(platforms))}" if platforms else ""
    return f"{wheels} wheels and {archives} archives of npm, {size_bytes:,} bytes{only}; no index is asked"
