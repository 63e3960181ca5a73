"""The policies of the teams that a state runs, and what they bind."""

from __future__ import annotations

from pathlib import Path

from retinue.policies.entities import TeamScope
from retinue.runtime.teams.programs import FILES, read_installed
from retinue.runtime.teams.store import TEAMS, TeamStore
from retinue.storage.state import State
from retinue.team.package import Team

LAYER = "policies"


def list_team_policies(state_root: Path) -> dict[Path, TeamScope]:
    """The files of policies of the active teams, each with what its policies bind.

    Raises StateDamagedError for a team that cannot be read, because its policies would not count.
    """
    if not (state_root / TEAMS / "teams.json").exists():
        return {}
    store = TeamStore(State(state_root))
    files: dict[Path, TeamScope] = {}
    for row in store.list_active():
        team = read_installed(store, row.name, row.active or "")
        folder = store.folder_of(team.name, team.digest) / FILES
        files |= {folder / path: scope_of(team) for path in team.policies}
    return files


def scope_of(team: Team) -> TeamScope:
    """What the policies of a team bind: calls to its agents and imports, and calls of them."""
    return TeamScope(team.name, team.names)
