"""Schedules of a team: what is refused, what a person agrees to, and what happens when digests change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from retinue.client.mesh_client import MeshClient
from retinue.core.errors import InvalidSettingError
from retinue.runtime.commands.teams.commands import TeamCommands
from retinue.runtime.commands.teams.source import read_source
from retinue.runtime.teams.programs import CONFIG
from retinue.runtime.teams.schedules import add_missing_schedules, remove_schedules, renew_schedules
from retinue.runtime.teams.store import TeamRow, TeamStore
from retinue.storage.state import State
from retinue.team.consent import describe_consent
from retinue.team.package import Team
from tests.team.conftest import WriteTeam

NIGHTLY = '[[schedules]]\nworkflow = "nightly"\n{keys}\n'
WORKFLOW = """name: nightly
input: {type: object}
steps:
  - {id: hello, skill: greet, with: {name: Ada}}
"""


class Mesh:
    """The schedules of a mesh: the reason why each does not fire, by its name."""

    def __init__(self, held: Mapping[str, str] = {}) -> None:
        self.held = dict(held)
        self.added: list[Mapping[str, Any]] = []

    async def get(self, skill: str, arguments: Mapping[str, Any] = {}) -> Any:
        if skill == "list_schedules":
            rows = [{"schedule": name, "reason": reason} for name, reason in self.held.items()]
            return {"schedules": [row if row["reason"] else {"schedule": row["schedule"]} for row in rows]}
        if skill == "add_schedule":
            self.added.append(arguments)
            self.held[arguments["name"]] = ""
        elif arguments["change"] == "remove":
            del self.held[arguments["schedule"]]
        else:
            self.held[arguments["schedule"]] = "paused by local"
        return {}

    @property
    def client(self) -> MeshClient:
        return cast(MeshClient, self)


def write_scheduled(write_team: WriteTeam, version: str, *keys: str) -> Path:
    more = "".join(NIGHTLY.format(keys=text) for text in keys)
    workflows = write_team(version) / "workflows"
    workflows.mkdir(exist_ok=True)
    (workflows / "nightly.yaml").write_text(WORKFLOW)
    return write_team(version, more=more)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (('cron = "0 3 * *"',), "schedules.0"),
        (("",), r"schedules\.0: a schedule has one of cron and every"),
        (('every = "15m"', 'every = "1h"'), "two entries"),
        ((f'every = "1h"\nname = "{"n" * 60}"',), "over 64 characters"),
        (('every = "1h"\nworkflow2 = "x"',), "unknown key"),
    ],
)
def test_a_schedule_that_never_fires_is_refused_before_packing(
    write_team: WriteTeam, keys: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(InvalidSettingError, match=problem):
        read_source(write_scheduled(write_team, "1.0.0", *keys))


def test_a_schedule_of_another_workflow_is_refused(write_team: WriteTeam) -> None:
    with pytest.raises(InvalidSettingError, match=r"schedules.0.workflow: no workflow other"):
        write_team(more='[[schedules]]\nworkflow = "other"\nevery = "1h"\n')


async def pack(teams: TeamCommands, state: State, folder: Path) -> Team:
    """Pack a team and install its config, as ``up`` does."""
    team = (await teams.pack(folder, registry=None, output=None)).team
    pulled = await teams.pull(team.digest)
    config = await pulled.source.pull_blob(pulled.repository, pulled.manifest.config)
    TeamStore(state).install(team.name, team.digest, {CONFIG: config})
    TeamStore(state).write_row(TeamRow(team.name, team.digest, team.version))
    return team


async def test_schedules_follow_the_digest_that_serves_and_end_with_the_team(
    teams: TeamCommands, state: State, write_team: WriteTeam
) -> None:
    store, mesh = TeamStore(state), Mesh({"mine": "", "words.mine": ""})
    first = await pack(teams, state, write_scheduled(write_team, "1.0.0", 'every = "1h"'))
    second_keys = ('every = "2h"\nname = "often"',)
    second = await pack(teams, state, write_scheduled(write_team, "1.1.0", *second_keys))
    assert "nightly 1h" in "\n".join(describe_consent(first, "me").render())

    await renew_schedules(mesh.get, store, first)
    assert mesh.added == [{"workflow": "nightly@words", "name": "words.nightly", "schedule": {"every": "1h"}}]
    mesh.held["words.nightly"] = "paused by local"
    await renew_schedules(mesh.get, store, first)
    assert mesh.held["words.nightly"] == "paused by local"

    await renew_schedules(mesh.get, store, second)
    await renew_schedules(mesh.get, store, second, only_missing=True)
    assert (sorted(mesh.held), len(mesh.added)) == (["mine", "words.mine", "words.often"], 3)
    assert [change.is_wider for change in (await teams.compare(first.digest, second.digest)).changes][:2] == [
        True,
        False,
    ]
    await remove_schedules(mesh.get, store, "words")
    assert sorted(mesh.held) == ["mine", "words.mine"]


async def test_the_hub_adds_the_schedules_that_a_killed_command_has_not_added(
    teams: TeamCommands, state: State, write_team: WriteTeam
) -> None:
    store, mesh = TeamStore(state), Mesh()
    team = await pack(teams, state, write_scheduled(write_team, "1.0.0", 'every = "1h"'))
    row = store.read_rows()["words"]
    assert not await add_missing_schedules(mesh.get, store)
    assert mesh.held == {}

    store.write_row(replace(row, is_unscheduled=True))
    with store.changing("words"):
        assert await add_missing_schedules(mesh.get, store)  # its command still runs
    assert mesh.held == {}
    assert not await add_missing_schedules(mesh.get, store)
    assert mesh.held == {"words.nightly": ""}
    assert store.read_rows()["words"] == row

    # the owner has removed it since then
    mesh.held.clear()
    assert not await add_missing_schedules(mesh.get, store)
    assert mesh.held == {}

    store.write_row(replace(row, is_unscheduled=True))

    async def down(skill: str, arguments: Mapping[str, Any] = {}) -> Any:
        if skill == "add_schedule":
            teams.down("words")
        return await mesh.get(skill, arguments)

    assert not await add_missing_schedules(down, store)
    assert (mesh.held, store.read_rows()["words"].active, team.name) == ({}, None, "words")
