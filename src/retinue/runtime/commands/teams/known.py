"""The digests of teams that a state has, packed or started, and their differences."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retinue.core.errors import InvalidReferenceError, ReferenceNotFoundError, RetinueError, StateDamagedError
from retinue.oci.codec.reference import Reference, is_digest
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.runtime.commands.teams.comparing import Comparison, compare_content, read_content
from retinue.runtime.commands.teams.places import TeamPlace
from retinue.runtime.teams.programs import FILES, read_installed
from retinue.runtime.teams.rollout import list_digests
from retinue.runtime.teams.spending import read_team_spending, render_spending
from retinue.runtime.teams.store import TeamStore
from retinue.storage.state import State
from retinue.team.change import TeamContent
from retinue.team.package import PREFIX


async def list_known(state: State) -> list[dict[str, Any]]:
    """The digests by team, the newest version first: ``team``, ``version``, ``digest`` and ``status``.

    ``status`` is ``running``, ``kept`` (it ran, and its files are here) or ``packed``. The one that serves
    has ``budget``, if its team has one. A tag that cannot be read is left out.
    """
    known: dict[str, dict[str, Any]] = {}
    store = TeamStore(state)
    for name, row in (await asyncio.to_thread(store.read_rows)).items():
        running = list_digests(row)
        for digest in store.list_installed(name):
            version = row.versions.get(digest, row.version if digest == row.active else "?")
            status = "running" if digest in running else "kept"
            known[digest] = {"team": name, "version": version, "digest": digest, "status": status}
            if digest == row.active and (budget := _describe_budget(state, store, name, digest)):
                known[digest]["budget"] = budget
    registry = LayoutRegistry(state.registry)
    for repository in await registry.list_repositories():
        if repository.startswith(PREFIX):
            for tag in await registry.list_tags(repository):
                packed = None if tag.startswith("sha256-") else await _find_digest(registry, repository, tag)
                if packed is not None and packed not in known:
                    name = repository.removeprefix(PREFIX)
                    known[packed] = {"team": name, "version": tag, "digest": packed, "status": "packed"}
    return sorted(known.values(), key=_sort_key)


async def compare_known(state: State, old: str, new: str) -> Mapping[str, Any]:
    """The differences of two digests of the state, as ``retinue diff --json`` prints them.

    Raises InvalidReferenceError and ReferenceNotFoundError.
    """
    before, after = await _read(state, old), await _read(state, new)
    changes = await asyncio.to_thread(compare_content, before, after)
    return Comparison(before.team, after.team, changes).as_json()


def _describe_budget(state: State, store: TeamStore, name: str, digest: str) -> dict[str, Any]:
    """What a team has spent of its budget today; {} for one without a budget, or that cannot be read."""
    try:
        spending = read_team_spending(state, read_installed(store, name, digest))
    except RetinueError:
        return {}
    return {**spending, "text": render_spending(spending)} if spending else {}


async def _find_digest(registry: LayoutRegistry, repository: str, tag: str) -> str | None:
    try:
        return await registry.find_digest(Reference(repository, tag=tag))
    except RetinueError:
        return None


def _sort_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    numbers = [-int(part) if part.isdigit() else 0 for part in str(row["version"]).split("-")[0].split(".")]
    return row["team"], numbers, row["digest"]


async def _read(state: State, digest: str) -> TeamContent:
    """A digest and its files, from the registry of the state, else from what is installed."""
    if not is_digest(digest):
        raise InvalidReferenceError(digest[:200], "a digest is sha256: and 64 lower-case hex digits")
    place = TeamPlace(LayoutRegistry(state.registry))
    repository = await place.find_repository(digest)
    if repository is not None:
        return await read_content(await place.pull(Reference(repository, digest=digest)))
    store = TeamStore(state)
    for name in await asyncio.to_thread(store.read_rows):
        if store.has(name, digest):
            return await asyncio.to_thread(_read_installed, store, name, digest)
    raise ReferenceNotFoundError(place.name, digest)


def _read_installed(store: TeamStore, name: str, digest: str) -> TeamContent:
    team = read_installed(store, name, digest)
    folder: Path = store.folder_of(name, digest) / FILES
    try:
        return TeamContent(team, {row.path: (folder / row.path).read_bytes() for row in team.files})
    except OSError as error:
        remedy = "start it from where it was packed: retinue up REF@sha256:…"
        raise StateDamagedError(str(folder), str(error.strerror), remedy=remedy) from error
