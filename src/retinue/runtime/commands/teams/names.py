"""The names of a team, and which of them nothing else in the mesh may have.

Programs of the team that end, or that a killed command started, still answer in the mesh for a moment. They
are of the team, so their names are free for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.client.hub_skills import read_agents
from retinue.client.mesh_client import MeshClient
from retinue.core.errors import TeamRefusedError
from retinue.mesh.directory.rollouts import mark_of, read_mark
from retinue.runtime.imports.files import read_kept_imports
from retinue.runtime.teams.store import TeamStore
from retinue.settings import Settings
from retinue.storage.state import State
from retinue.team.package import Team

PAGE = 100


def check_import_names(team: Team, settings: Settings, state: State) -> None:
    """Raise TeamRefusedError for a name that an import of the settings or of this state has."""
    own = team.names
    for place, tables in (
        ("retinue.toml", settings.imports.servers),
        ("this state", read_kept_imports(state)),
    ):
        if clash := sorted(own & tables.keys()):
            problem = f"{place} has the import {clash[0]}, too"
            raise TeamRefusedError("name_taken", team.name, problem, remedy="rename one of them")


async def check_mesh_names(store: TeamStore, team: Team, client: MeshClient) -> None:
    """Raise TeamRefusedError for a name of an agent that answers in the mesh and is not of this team."""
    reply = await read_agents(client.get, {"limit": PAGE})
    digests = {team.digest, *store.list_installed(team.name)}
    marks = {mark_of(digest) for digest in digests}
    teams = {row.name for row in store.list_active()} - {team.name}
    taken = [
        row["name"]
        for row in reply["agents"]
        if row["name"] in team.names
        and row["status"] != "unavailable"
        and find_mark(row) not in marks
        and _find_folder(row) not in teams
    ]
    if taken:
        problem = f"an agent of this mesh is called {min(taken)}, too"
        remedy = f"give one of them another name, or stop the other: retinue forget {min(taken)}"
        raise TeamRefusedError("name_taken", team.name, problem, remedy=remedy)


def find_mark(row: Mapping[str, Any]) -> str:
    """The mark of the digest of an agent in the rows of ``list_agents``; "" for one that is of no team."""
    return read_mark(str(row.get("reference", "")).rpartition(":")[2])


def _find_folder(row: Mapping[str, Any]) -> str:
    """The team of an agent in the rows of ``list_agents``, by its key ``agents/TEAM/NAME``."""
    parts = str(row.get("reference", "")).split("/")
    return parts[1] if len(parts) == 3 else ""
