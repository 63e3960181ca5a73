"""The differences of two teams by ability, for people and for programs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retinue.runtime.commands.teams.places import PulledTeam
from retinue.runtime.commands.teams.policies import compare_policies
from retinue.runtime.teams.programs import FILES
from retinue.runtime.teams.store import TeamStore
from retinue.team.change import Change, TeamContent
from retinue.team.difference import compare_teams, exit_status, name_rest
from retinue.team.files import ARCHIVES_LAYER, WHEELS_LAYER
from retinue.team.package import Team


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences of two digests."""

    old: Team
    new: Team
    changes: Sequence[Change]

    @property
    def status(self) -> int:
        """The exit status: 0 the same, 1 different, 3 wider."""
        return exit_status(self.changes)

    def as_json(self) -> dict[str, Any]:
        """The differences as JSON."""
        results = {0: "same", 1: "different", 3: "wider"}
        return {
            "from": {"team": self.old.name, "version": self.old.version, "digest": self.old.digest},
            "to": {"team": self.new.name, "version": self.new.version, "digest": self.new.digest},
            "result": results[self.status],
            "changes": [change.as_json() for change in self.changes],
        }


def compare_content(old: TeamContent, new: TeamContent) -> list[Change]:
    """The differences of two teams by ability, with those of their policies.

    What gives more comes first, then what callers have to follow.
    """
    changes = [*compare_teams(old, new), *compare_policies(old, new)]
    if not changes:
        changes = name_rest(old.team, new.team)
    return sorted(changes, key=lambda change: (not change.is_wider, not change.is_breaking))


async def read_content(pulled: PulledTeam) -> TeamContent:
    """A team with its checked files, in memory."""
    return TeamContent(pulled.team, {file.path: file.content for file in await pulled.pull_files()})


async def describe_change(store: TeamStore, active: Team, pulled: PulledTeam) -> list[str]:
    """The differences of a team to the installed one that runs, as lines."""
    folder = store.folder_of(active.name, active.digest) / FILES
    files = await asyncio.to_thread(_read_files, folder, active)
    changes = compare_content(TeamContent(active, files), await read_content(pulled))
    return [line for change in changes for line in change.render()]


def _read_files(folder: Path, team: Team) -> dict[str, bytes]:
    """The installed files of a digest but its packages, which no difference looks at."""
    return {
        file.path: (folder / file.path).read_bytes()
        for file in team.files
        if file.layer not in (WHEELS_LAYER, ARCHIVES_LAYER)
    }
