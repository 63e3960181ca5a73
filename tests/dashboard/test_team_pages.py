"""The page of teams: the digests of a state, and what one of them can do that another cannot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from retinue.runtime.commands.teams.commands import open_teams
from retinue.settings import Settings
from retinue.storage.state import State
from tests.dashboard.site import Site
from tests.system import open_system, open_wire
from tests.team.conftest import WriteTeam
from tests.team.conftest import write_team as write_team

ACCESS = '\n[access.words-agent]\nsend = ["files/read_file", "<b>/x"]\n'


@pytest.fixture
async def site(retinue_home: Path) -> AsyncIterator[Site]:
    async with open_system(State(retinue_home)) as system, open_wire() as wire:
        yield Site(system, await system.start_hub(dashboard=True), wire, [])


async def test_the_page_of_two_digests_shows_what_diff_prints(site: Site, write_team: WriteTeam) -> None:
    owner = f"Bearer {site.system.state.owner_token()}"
    empty = (await site.read("/ui/teams", owner)).body.decode()
    assert "No teams." in empty
    async with open_teams(Settings(), site.system.state) as teams:
        folders = write_team("1.0.0"), write_team("1.1.0", more=ACCESS)
        first, second = [
            (await teams.pack(folder, registry=None, output=None)).team.digest for folder in folders
        ]
        compared = (await teams.compare(second, first)).as_json()
    page = f"/ui/teams?from={second}&to={first}"
    shown, listed = (await site.read(page, owner)), (await site.read("/ui/teams", owner)).body.decode()
    assert (first in listed, second in listed, "packed" in listed) == (True, True, True)
    assert "The second can do more." in shown.body.decode()
    assert "may call everybody: the list is gone" in shown.body.decode()
    other = (await site.read(f"/ui/teams?from={first}&to={second}", owner)).body.decode()
    assert "may call only files/read_file, &lt;b&gt;/x" in other
    assert orjson.loads((await site.read(f"{page}&format=json", owner)).body) == compared
    same = (await site.read(f"/ui/teams?from={first}&to={first}", owner)).body.decode()
    assert "Both can do the same." in same


@pytest.mark.parametrize(
    ("query", "status"),
    [("?from=sha256:1&to=x", 422), (f"?from=sha256:{'1' * 64}&to=sha256:{'2' * 64}", 404)],
)
async def test_other_digests_and_other_visitors_see_nothing(site: Site, query: str, status: int) -> None:
    owner, member = f"Bearer {site.system.state.owner_token()}", site.token("mesh", name="eve")
    assert (await site.read(f"/ui/teams{query}", owner)).status == status
    assert (await site.read(f"/ui/teams{query}", member)).status == 403
