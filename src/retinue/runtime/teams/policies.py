"""The policies of the teams that a state runs, and what they bind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from retinue.policies.entities import TeamScope
from retinue.runtime.teams.programs import FILES, read_installed
from retinue.runtime.teams.rollout import read_rollout
from retinue.runtime.teams.store import TEAMS, TeamStore
from retinue.storage.state import State
from retinue.team.package import Team

LAYER = "policies"


def list_team_policies(state_root: Path) -> dict[Path, TeamScope]:
    """The files of policies of the digests that run, each with what its policies bind.

    Raises StateDamagedError for a team that cannot be read, because its policies would not count.
    """
    if not (state_root / TEAMS / "teams.json").exists():
        return {}
    store = TeamStore(State(state_root))
    files: dict[Path, TeamScope] = {}
    for row in store.list_active():
        rollout = read_rollout(row)
        digests = (row.active or "",) if rollout is None else rollout.list_running()
        for digest in digests:
            team = read_installed(store, row.name, digest)
            folder, scope = store.folder_of(team.name, team.digest) / FILES, scope_of(team)
            if digest != digests[0]:
                # while two digests run, the policies of both bind both, each with ids of its own
                scope = replace(scope, name=f"{team.name}@{digest[7:19]}", team=team.name)
            files |= {folder / path: scope for path in team.policies}
    return files


def scope_of(team: Team) -> TeamScope:
    """What the policies of a team bind: calls to its agents and imports, and calls of them."""
    return TeamScope(team.name, team.names)
