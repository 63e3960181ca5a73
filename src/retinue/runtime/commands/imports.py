"""Stores imports in the state, and waits until the running hub has connected them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retinue.client.hub_skills import read_agents
from retinue.client.mesh_client import MeshClient
from retinue.core.errors import (
    AgentUnreachableError,
    CallTimedOutError,
    InvalidSettingError,
    NotAuthenticatedError,
    RetinueError,
)
from retinue.core.record import HUB_NAME
from retinue.mcp.client_configs.servers import is_own_hub
from retinue.mcp.upstream.http_transport import NEEDS_LOGIN
from retinue.runtime.imports.files import find_members, find_own_url, open_pins, write_import
from retinue.settings import Settings
from retinue.settings_tables import ImportTable
from retinue.storage.state import State

NOTICED_WITHIN_S = 3.0
"""After this time the hub has seen the file, even if the server looks the same as before."""

TOLD_AFTER_S = 3.0
"""After this time a person is told which servers are still starting."""

WAIT_MORE_S = 5.0
"""How long the hub may take longer than a server may take to start."""

_LONGEST_NAME = 40
_LOOK_S = 0.2
_PAGE = 100


@dataclass(frozen=True, slots=True)
class ImportOutcome:
    """The outcome of one import: its skills, or the problem; both empty if the hub does not list it yet.

    ``shared`` are the skills that other agents offer, each with their names.
    """

    name: str
    skills: tuple[str, ...] = ()
    problem: str = ""
    is_listed: bool = True
    shared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def failure(self) -> type[RetinueError] | None:
        """The class of error that the failure is; None for an import that runs."""
        if self.problem.startswith(NEEDS_LOGIN):
            return NotAuthenticatedError
        if self.problem:
            return AgentUnreachableError
        return None if self.is_listed else CallTimedOutError


async def list_rows(client: MeshClient) -> dict[str, Mapping[str, Any]]:
    """The rows of ``list_agents`` by name."""
    reply = await read_agents(client.get, {"limit": _PAGE})
    return {row["name"]: row for row in reply["agents"]}


OnSlow = Callable[[Sequence[str]], None]
"""Called once with the imports that are still starting after `TOLD_AFTER_S`."""


async def keep_and_wait(
    client: MeshClient,
    state: State,
    tables: Mapping[str, ImportTable],
    on_slow: OnSlow = lambda names: None,
) -> list[ImportOutcome]:
    """Store imports, and wait until the hub has connected to each or reports its failure."""
    before = await list_rows(client)
    for name, table in tables.items():
        write_import(state, name, table)
    return await wait_for_hub(client, tables, before, on_slow)


async def wait_for_hub(
    client: MeshClient,
    tables: Mapping[str, ImportTable],
    before: Mapping[str, Mapping[str, Any]],
    on_slow: OnSlow = lambda names: None,
) -> list[ImportOutcome]:
    """Wait until the hub lists the imports in another way than ``before``, or does not change them."""
    clock = asyncio.get_running_loop().time
    began = clock()
    is_told = False
    waits_s = max((table.start_s for table in tables.values()), default=0.0) + WAIT_MORE_S
    while True:
        rows = await list_rows(client)
        waited_s = clock() - began
        open_ones = [name for name in tables if not _is_settled(rows.get(name), before.get(name), waited_s)]
        if waited_s > waits_s or not open_ones:
            return [_outcome_of(name, rows) for name in tables]
        if waited_s > TOLD_AFTER_S and not is_told:
            is_told = True
            on_slow(open_ones)
        await asyncio.sleep(_LOOK_S)


def import_name_of(name: str) -> str:
    """The name of the agent that a client's server becomes."""
    base_name = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:_LONGEST_NAME] or "server"
    return "pin-server" if base_name == "pin" else base_name


def choose_name(
    name: str,
    table: ImportTable,
    client_name: str,
    imports: Mapping[str, ImportTable],
    agents: Collection[str],
) -> tuple[str, bool]:
    """The name of the import, and whether it is new: an equal import is shared."""
    base = import_name_of(name)
    if (
        same := next((import_name for import_name, known in imports.items() if known == table), None)
    ) is not None:
        return same, False
    second = f"{base[: _LONGEST_NAME - len(client_name) - 1]}-{client_name}"
    numbered = (f"{second[: _LONGEST_NAME - 4]}-{number}" for number in range(2, 1000))
    taken = {HUB_NAME, *imports, *agents}
    return next(candidate for candidate in (base, second, *numbered) if candidate not in taken), True


def check_names(
    settings: Settings, state: State, tables: Mapping[str, ImportTable], agents: Collection[str]
) -> None:
    """Raise InvalidSettingError for an import that would cover an agent, or connect to this hub itself.

    ``agents`` are those of the running hub that are no imports.
    """
    own_url = find_own_url(settings, state)
    for name, table in tables.items():
        if is_own_hub(table.model_dump(), own_url):
            raise InvalidSettingError(
                name, "this is the hub of this state itself", remedy="its agents are in the mesh already"
            )
        if name == HUB_NAME:
            raise InvalidSettingError(
                "NAME", f"{name!r} is the agent of the hub itself", remedy="choose another name"
            )
        if name in settings.imports.servers:
            raise InvalidSettingError(
                f"imports.{name}",
                "it is set in retinue.toml, which comes first",
                remedy="change the table there, or choose another name",
            )
        if name in agents:
            raise InvalidSettingError(
                "NAME", f"an agent is called {name!r} already", remedy="choose another name: retinue agents"
            )


def remove_import(settings: Settings, state: State, name: str) -> None:
    """Remove an import and its accepted tools; the caller ends its login. Raises InvalidSettingError."""
    members = find_members(settings, state, name)
    if not members:
        raise unknown_import(name)
    if team := members[0].team:
        raise InvalidSettingError(
            "NAME", f"it is an import of the team {team}", remedy=f"stop the team: retinue down {team}"
        )
    if name in settings.imports.servers:
        raise InvalidSettingError(
            f"imports.{name}", "it is set in retinue.toml", remedy="remove the table there"
        )
    write_import(state, name, None)
    open_pins(settings, state).forget(name)


def unknown_import(name: str) -> InvalidSettingError:
    """The error for the name of no import."""
    return InvalidSettingError(
        "NAME", f"no import is called {name[:60]!r}", remedy="list them: retinue imports"
    )


def _is_settled(row: Mapping[str, Any] | None, before: Mapping[str, Any] | None, waited_s: float) -> bool:
    is_news = row != before or waited_s > NOTICED_WITHIN_S
    return is_news and row is not None and row["status"] in ("available", "degraded", "unavailable")


def _outcome_of(name: str, rows: Mapping[str, Mapping[str, Any]]) -> ImportOutcome:
    row = rows.get(name)
    if row is None or row["status"] == "unknown":
        return ImportOutcome(name, is_listed=False)
    if row["status"] == "unavailable":
        return ImportOutcome(name, problem=str(row.get("last_error") or "no reason given"))
    skills = tuple(str(skill) for skill in row.get("skills", ()))
    offering = {
        skill: tuple(
            other for other, facts in rows.items() if other != name and skill in facts.get("skills", ())
        )
        for skill in skills
    }
    return ImportOutcome(name, skills, shared={skill: agents for skill, agents in offering.items() if agents})
