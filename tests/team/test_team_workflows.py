"""Workflows of two teams with one name: which one a name means, and how they are listed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from retinue.core.errors import DefinitionError, UnknownWorkflowError
from retinue.runtime.commands.teams.commands import TeamCommands
from retinue.runtime.commands.teams.places import unpack
from retinue.runtime.shelves import FolderShelf, TeamShelf
from retinue.runtime.teams.store import TeamRow, TeamStore
from retinue.storage.state import State
from retinue.workflows.library import Library, bundle
from tests.team.conftest import WriteTeam

EDIT = "name: edit\nsteps: [{{id: one, workflow: part}}, {{id: two, skill: count, with: {{team: {team}}}}}]\n"
PART = "name: part\nsteps: [{{id: one, skill: count, with: {{team: {team}}}}}]\n"
BOTH = "name: both\nsteps: [{id: one, workflow: edit@news}, {id: two, workflow: edit@words}]\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "own"
    folder.mkdir()
    return folder


@pytest.fixture
async def library(
    teams: TeamCommands, write_team: WriteTeam, state: State, tmp_path: Path, folder: Path
) -> Library:
    """The workflows of the teams news and words, which run, and those of a folder."""
    store = TeamStore(state)
    for name in ("news", "words"):
        workflows = tmp_path / f"{name}-1.0.0" / "workflows"
        workflows.mkdir(parents=True)
        (workflows / "edit.yaml").write_text(EDIT.format(team=name))
        (workflows / "part.yaml").write_text(PART.format(team=name))
        packed = await teams.pack(write_team(name=name), registry=None, output=None)
        await unpack(store, await teams.pull(packed.team.digest))
        store.write_row(TeamRow(name, packed.team.digest, "1.0.0"))
    return Library([FolderShelf(folder)], teams=TeamShelf(state))


async def list_names(library: Library) -> list[str]:
    return [workflow.name for workflow in await library.list_all() if workflow.origin == "custom"]


async def test_a_name_of_two_teams_is_told_with_the_team(library: Library) -> None:
    assert await list_names(library) == ["edit@news", "edit@words", "part@news", "part@words"]
    for team in ("news", "words"):
        by_name, by_chain = await library.get(f"edit@{team}"), await library.get("edit", team=team)
        assert (by_name.team, by_name.shown_as, by_name) == (team, f"edit@{team}", by_chain)
        nested = (await bundle(library, by_name)).nested["part"]
        assert nested.definition.steps[0].with_ == {"team": team}
    with pytest.raises(UnknownWorkflowError) as caught:
        await library.get("edit", team="other")
    assert caught.value.remedy == "did you mean edit@news, edit@words?"
    with pytest.raises(UnknownWorkflowError):
        await library.get("edit@other")


async def test_a_name_of_one_team_stays_plain(library: Library, state: State) -> None:
    store = TeamStore(state)
    store.write_row(replace(store.read_rows()["words"], active=None))
    assert await list_names(library) == ["edit", "part"]
    assert {(await library.get(name)).shown_as for name in ("edit", "edit@news")} == {""}


async def test_a_workflow_of_the_hub_has_the_plain_name(library: Library, folder: Path) -> None:
    (folder / "edit.yaml").write_text("name: edit\nsteps: [{id: own, skill: count}]\n")
    assert await list_names(library) == ["edit", "edit@news", "edit@words", "part@news", "part@words"]
    assert (await library.get("edit")).team == ""
    assert (await library.get("edit", team="words")).shown_as == "edit@words"


async def test_one_run_has_no_two_workflows_of_one_plain_name(library: Library, folder: Path) -> None:
    (folder / "both.yaml").write_text(BOTH)
    with pytest.raises(DefinitionError, match="two workflows are called part") as caught:
        await bundle(library, await library.get("both"))
    assert "part@words" in (caught.value.remedy or "")
