"""What a state knows of its teams: the rows, the programs, and the keys that signed them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.cards.signatures import TrustedKeys
from retinue.core.errors import RetinueError
from retinue.runtime.commands.teams.installed import verify_signature
from retinue.runtime.commands.teams.packing import TeamPackages
from retinue.runtime.factories import card_keys
from retinue.runtime.teams.programs import read_installed
from retinue.runtime.teams.spending import read_team_spending
from retinue.runtime.teams.store import TeamRow, TeamStore
from retinue.settings import Settings
from retinue.storage.state import State
from retinue.team.package import Team
from retinue.web.http_client import HttpClient


class TeamViews(TeamPackages):
    """The commands that show teams, beside those that pack them."""

    def __init__(self, settings: Settings, state: State, http: HttpClient) -> None:
        super().__init__(settings, state, http)
        self._store = TeamStore(state)

    def list_rows(self) -> list[TeamRow]:
        """All teams that were ever started here, by name; those of killed commands are put back first."""
        self._store.mend()
        return self._store.list_settled()

    def read(self, row: TeamRow) -> Team | None:
        """The team of a row; None for one that is down."""
        return None if row.active is None else read_installed(self._store, row.name, row.active)

    def find_signer_problem(self, row: TeamRow) -> str:
        """Why ``up`` would refuse the digest that runs now, such as a withdrawn key; "" if it would not."""
        if row.active is None:
            return ""
        try:
            verify_signature(
                self._store, read_installed(self._store, row.name, row.active), self._trusted_keys()
            )
        except RetinueError as error:
            return error.message
        return ""

    def read_spending(self, row: TeamRow) -> Mapping[str, Any]:
        """What the models of a team have spent of its budget today; {} for one without a budget, or down."""
        team = self._read_active(row)
        return {} if team is None else read_team_spending(self._state, team)

    def read_children(self) -> Mapping[str, Any]:
        """What the hub says of the programs of teams."""
        return self._store.read_children()

    def _read_active(self, row: TeamRow) -> Team | None:
        """As `read`; None also for one that cannot be read."""
        try:
            return self.read(row)
        except RetinueError:
            return None

    def _trusted_keys(self) -> TrustedKeys:
        return card_keys(self._settings.signatures, self._state).trusted()
