"""Keeps imports in the state, and waits for what the running hub makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retinue.core.errors import InvalidSettingError
from retinue.runtime.commands.client import Client
from retinue.runtime.importing.imports import open_pins, read_imports, write_import
from retinue.runtime.importing.logins import LoginFile
from retinue.settings import Settings
from retinue.settings_tables import ImportTable
from retinue.storage.state import State

NOTICED_WITHIN_S = 3.0
"""After this time the hub has seen the file, even if the server looks the same as before."""

WAIT_MORE_S = 5.0
"""How long the hub may take longer than a server may take to start."""

_LOOK_S = 0.2
_PAGE = 100


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one import: its skills, or the problem; both empty if the hub does not list it yet."""

    name: str
    skills: tuple[str, ...] = ()
    problem: str = ""
    is_listed: bool = True


async def list_rows(client: Client) -> dict[str, Mapping[str, Any]]:
    """The rows of ``list_agents`` by name."""
    found: dict[str, Mapping[str, Any]] = {}
    asked: dict[str, Any] = {"query": "", "limit": _PAGE, "detailed": True}
    while True:
        page = await client.get("list_agents", asked)
        found |= {row["name"]: row for row in page["agents"]}
        if not page.get("next"):
            return found
        asked["after"] = page["next"]


async def keep_and_wait(client: Client, state: State, tables: Mapping[str, ImportTable]) -> list[Outcome]:
    """Keep imports, and wait until the hub has connected to each, or says why it cannot."""
    before = await list_rows(client)
    for name, table in tables.items():
        write_import(state, name, table)
    return await wait_for_hub(client, tables, before)


async def wait_for_hub(
    client: Client, tables: Mapping[str, ImportTable], before: Mapping[str, Mapping[str, Any]]
) -> list[Outcome]:
    """Wait until the hub lists the imports in another way than ``before``, or does not change them."""
    clock = asyncio.get_running_loop().time
    began = clock()
    waits_s = max((table.start_s for table in tables.values()), default=0.0) + WAIT_MORE_S
    while True:
        rows = await list_rows(client)
        waited_s = clock() - began
        if waited_s > waits_s or all(
            _is_settled(rows.get(name), before.get(name), waited_s) for name in tables
        ):
            return [_outcome_of(name, rows.get(name)) for name in tables]
        await asyncio.sleep(_LOOK_S)


def remove_import(settings: Settings, state: State, name: str) -> None:
    """Remove an import, its accepted tools and its login. Raises InvalidSettingError."""
    if name not in read_imports(settings, state):
        raise unknown_import(name)
    if name in settings.imports.servers:
        raise InvalidSettingError(
            f"imports.{name}", "it is set in retinue.toml", remedy="remove the table there"
        )
    write_import(state, name, None)
    open_pins(settings, state).forget(name)
    LoginFile(state, name, "").forget()


def unknown_import(name: str) -> InvalidSettingError:
    """The error for the name of no import."""
    return InvalidSettingError(
        "NAME", f"no import is called {name[:60]!r}", remedy="list them: retinue imports"
    )


def _is_settled(row: Mapping[str, Any] | None, before: Mapping[str, Any] | None, waited_s: float) -> bool:
    is_news = row != before or waited_s > NOTICED_WITHIN_S
    return is_news and row is not None and row["status"] in ("available", "degraded", "unavailable")


def _outcome_of(name: str, row: Mapping[str, Any] | None) -> Outcome:
    if row is None or row["status"] == "unknown":
        return Outcome(name, is_listed=False)
    if row["status"] == "unavailable":
        return Outcome(name, problem=str(row.get("last_error") or "no reason given"))
    return Outcome(name, tuple(str(one) for one in row.get("skills", ())))
