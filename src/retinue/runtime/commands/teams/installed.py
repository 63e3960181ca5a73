"""A digest whose files are in the state: its signature, its files, and the environments of its locks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import orjson

from retinue.cards.signatures import TrustedKeys, Verdict
from retinue.core.errors import InvalidSettingError, StateDamagedError, TeamRefusedError
from retinue.oci.codec.manifest import parse_manifest
from retinue.oci.codec.reference import digest_of
from retinue.runtime.teams.environments import Environments, sweep
from retinue.runtime.teams.programs import CONFIG, FILES, MANIFEST, SIGNATURES
from retinue.runtime.teams.store import TeamStore
from retinue.team.definition import TeamImport
from retinue.team.package import Team
from retinue.team.signature import verify_team

AT_ONCE = 4
"""Installations at the same time."""

_REMEDY = "start it from where it was packed: retinue up REF@sha256:…"


def verify_signature(store: TeamStore, team: Team, keys: TrustedKeys) -> Verdict:
    """The verdict of a trusted key over the manifest and config that were installed.

    Raises TeamRefusedError for a key that is no longer trusted and for other content, StateDamagedError.
    """
    where = f"{team.name} {team.version}"
    folder = store.folder_of(team.name, team.digest)
    manifest_bytes = _read(folder / MANIFEST)
    manifest = parse_manifest(manifest_bytes, where=where)
    digests = digest_of(manifest_bytes), digest_of(_read(folder / CONFIG))
    if digests != (team.digest, manifest.config.digest):
        raise TeamRefusedError("changed", where, "its config is not that of its digest", remedy=_REMEDY)
    signatures = orjson.loads(_read(folder / SIGNATURES))
    return verify_team(team, signatures, keys, where=where)


def check_files(store: TeamStore, team: Team) -> None:
    """Raise TeamRefusedError unless each file of a digest is as it was packed."""
    folder = store.folder_of(team.name, team.digest) / FILES
    for row in team.files:
        if hashlib.sha256(_read(folder / row.path)).hexdigest() != row.sha256:
            where = f"{team.name} {team.version}"
            raise TeamRefusedError("changed", where, f"{row.path} is not as it was packed", remedy=_REMEDY)


def make_environments(store: TeamStore, team: Team, environ: Mapping[str, str]) -> None:
    """Install the packages that a digest locked, where they are not there, a few locks at once.

    Raises InvalidSettingError for a lock that is not that of its package, and StateError.
    """
    if works := plan_installations(store, team, environ):
        with ThreadPoolExecutor(min(AT_ONCE, len(works)), "environments") as pool:
            for future in [pool.submit(work) for work in works]:
                future.result()


def plan_installations(
    store: TeamStore, team: Team, environ: Mapping[str, str]
) -> Sequence[Callable[[], object]]:
    """What installs the packages of a digest, lock by lock; it does nothing where they are there.

    Raises InvalidSettingError for a lock that is not that of its package.
    """
    sweep(store.environments)
    place = store.folder_of(team.name, team.digest) / FILES
    vendored = place if team.is_vendored else None
    environments = Environments(store.environments, environ, vendored=vendored)
    agents = {locked.lock for locked in team.lock.agents.values()} - {None}
    works: list[Callable[[], object]] = [
        partial(environments.make_python, (place / lock).read_bytes(), is_agent=True)
        for lock in sorted(agents, key=str)
        if lock is not None
    ]
    made: set[bytes] = set()
    for name, table in team.definition.imports.items():
        lock = team.lock.imports[name].lock
        content = None if lock is None else (place / lock).read_bytes()
        if lock is None or content is None:
            continue
        _check_lock(team, name, table, content)
        if content in made:
            continue
        made.add(content)
        if table.npm is not None:
            manifest = ((place / lock).parent / "package.json").read_bytes()
            works.append(partial(environments.make_npm, manifest, content))
        elif table.pypi is not None:
            works.append(partial(environments.make_python, content, is_agent=False))
    return works


def _check_lock(team: Team, name: str, table: TeamImport, content: bytes) -> None:
    """Raise InvalidSettingError for a lock of another package, or of another number than was shown."""
    from retinue.runtime.commands.teams.locking import check_package_lock, check_pylock

    field, count = f"imports.{name}", 0
    if table.npm is not None:
        count = check_package_lock(content, table.package_name, table.npm.rpartition("@")[2], field)
    elif table.pypi is not None:
        count = check_pylock(content, table.pypi, field, has_wheels=team.is_vendored)
    if count != team.lock.imports[name].packages:
        problem = f"its lock has {count} packages, and team.lock says {team.lock.imports[name].packages}"
        raise InvalidSettingError(field, problem, remedy="write it again: retinue lock")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StateDamagedError(str(path), str(error.strerror), remedy=_REMEDY) from None
