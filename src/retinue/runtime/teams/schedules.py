"""The schedules of a team in the mesh: added when a digest serves, removed when the team is down.

``get`` calls a skill of the hub with arguments: of a command by its client, of the hub by its own dispatcher.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from retinue.core.errors import BusyError, RetinueError
from retinue.runtime.teams.programs import read_installed
from retinue.runtime.teams.store import TeamRow, TeamStore
from retinue.team.package import Team

Get = Callable[[str, Mapping[str, Any]], Awaitable[Any]]

_PAUSED_BY = "paused by "
"""How the reason of a schedule begins that a person has paused."""


def list_schedule_names(store: TeamStore, name: str) -> set[str]:
    """The names of the schedules of all installed digests of a team."""
    names: set[str] = set()
    for digest in store.list_installed(name):
        try:
            definition = read_installed(store, name, digest).definition
        except RetinueError:
            continue
        names |= {schedule.name_in(name) for schedule in definition.schedules}
    return names


async def renew_schedules(get: Get, store: TeamStore, team: Team, *, only_missing: bool = False) -> None:
    """Add the schedules of the digest that serves, and remove those that only other digests have.

    A schedule that a person has paused stays so. With ``only_missing`` those that may fire stay as they are.
    """
    schedules = {schedule.name_in(team.name): schedule for schedule in team.definition.schedules}
    known = list_schedule_names(store, team.name) | {*schedules}
    if not known:
        return
    held = await _list_held(get)
    for name in sorted(known & held.keys() - schedules.keys()):
        await get("change_schedule", {"schedule": name, "change": "remove"})
    for name, schedule in schedules.items():
        if only_missing and not held.get(name, "missing"):
            continue
        # the plain name may be that of a workflow of the hub or of another team
        fields: dict[str, Any] = {"workflow": f"{schedule.workflow}@{team.name}", "name": name}
        if schedule.rule:
            fields["schedule"] = schedule.rule
        await get("add_schedule", fields)
        if held.get(name, "").startswith(_PAUSED_BY):
            await get("change_schedule", {"schedule": name, "change": "pause"})


async def add_missing_schedules(get: Get, store: TeamStore) -> bool:
    """Add the schedules of the teams whose command was killed before it had added them.

    Returns whether a command that is about to add some of them still runs.
    """
    is_waiting = False
    for row in store.list_active():
        if not row.is_unscheduled:
            continue
        try:
            with store.changing(row.name, within_s=0.0) as current:
                digest = current.active if current.is_unscheduled else None
        except BusyError:
            is_waiting = True
            continue
        if digest is None:
            continue
        await renew_schedules(get, store, read_installed(store, row.name, digest), only_missing=True)
        scheduled = store.change_row(row.name, partial(_note_scheduled, digest))
        if scheduled.active is None:
            await remove_schedules(get, store, row.name)  # a command has stopped it meanwhile
    return is_waiting


def _note_scheduled(digest: str, row: TeamRow) -> TeamRow:
    return replace(row, is_unscheduled=False) if row.active in (None, digest) else row


async def remove_schedules(get: Get, store: TeamStore, name: str) -> None:
    """Remove the schedules of a team that is down."""
    held = await _list_held(get)
    for schedule in sorted(list_schedule_names(store, name) & held.keys()):
        await get("change_schedule", {"schedule": schedule, "change": "remove"})


async def _list_held(get: Get) -> dict[str, str]:
    """The schedules of the caller by name, each with the reason why it does not fire, if any."""
    rows = (await get("list_schedules", {}))["schedules"]
    return {row["schedule"]: str(row.get("reason", "")) for row in rows}
