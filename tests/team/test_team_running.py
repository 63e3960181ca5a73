"""What ``up``, ``up --back`` and ``down`` check and keep, without a hub, also after a kill."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import orjson
import pytest

from retinue.client.mesh_client import MeshClient
from retinue.core.errors import ChildFailedError, InvalidSettingError, StateError, TeamRefusedError
from retinue.llm.completion import ModelPrompt, Usage
from retinue.llm.spec import ModelSpec, Prices
from retinue.llm.spending import Ledger
from retinue.mesh.directory.rollouts import mark_of
from retinue.runtime.commands.teams import commands as team_commands
from retinue.runtime.commands.teams import upgrading
from retinue.runtime.commands.teams.commands import TeamCommands, UpOptions
from retinue.runtime.commands.teams.names import check_mesh_names
from retinue.runtime.imports.files import write_import
from retinue.runtime.models import list_model_states
from retinue.runtime.parts import children as children_part
from retinue.runtime.parts.children import TeamNews
from retinue.runtime.supervisor import ChildProcess, ChildSpec, Supervisor
from retinue.runtime.teams.programs import team_children
from retinue.runtime.teams.store import TeamRow, TeamStore
from retinue.settings import Settings
from retinue.settings_tables import ImportTable
from retinue.storage.state import State
from retinue.team.package import Team
from tests.team.conftest import WriteTeam

AGREED = UpOptions(is_agreed=True)
OLD, NEW = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def agree(consent: object) -> bool:
    return True


@pytest.fixture
def environments(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The digests whose environments were made; no hub is started."""
    made: list[str] = []

    async def no_hub(*_: object, **__: object) -> str:
        raise StateError("no hub in this test")

    def make(_: TeamStore, team: Team, environ: Mapping[str, str]) -> None:
        made.append(team.digest)

    monkeypatch.setattr(team_commands, "ensure_hub", no_hub)
    monkeypatch.setattr(team_commands, "make_environments", make)
    return made


async def install(teams: TeamCommands, state: State, folder: Path) -> Team:
    """Install a team as one that ran before."""
    team = (await teams.pack(folder, registry=None, output=None)).team
    with pytest.raises(StateError, match="no hub in this test"):
        await teams.up(team.digest, AGREED, agree, print)
    TeamStore(state).write_row(TeamRow(team.name, before=team.digest, versions={team.digest: team.version}))
    return team


def kill_while_starting(store: TeamStore, row: TeamRow) -> None:
    """Leave the state as a command that was killed after it had let the hub run another digest."""
    with store.changing(row.name):
        store.write_row(row)
        kept = {**row.secrets, NEW: store.keep_secrets(row.name, {"KEY": "new"})}
        started = replace(row, active=NEW, version="2.0.0", before=row.active, secrets=kept)
        store.write_row(replace(started, undo=asdict(row)))


def test_what_a_killed_command_has_started_is_put_back_with_its_secrets(state: State) -> None:
    store = TeamStore(state)
    former = TeamRow("words", OLD, "1.0.0", "2026-01-01", "words", "me", "1.0.0", names=("words-agent",))
    with store.changing("words"):
        former = replace(former, secrets={OLD: store.keep_secrets("words", {"KEY": "old"})})
        store.write_row(former)
    kill_while_starting(store, former)
    assert [row.active for row in store.list_settled()] == [OLD]

    store.mend()
    row = store.read_rows()["words"]
    assert replace(row, failed={}) == replace(former, names=["words-agent"])
    assert (row.failed["digest"], "killed" in row.failed["reason"]) == (NEW, True)
    assert store.read_secrets(row, OLD) == {"KEY": "old"}
    assert len(list(store.root.glob("words/secrets*"))) == 1


def test_a_team_that_is_changed_now_is_not_put_back(state: State) -> None:
    store = TeamStore(state)
    with store.changing("words") as row, store.starting(row, ["words-agent"]):
        TeamStore(state).mend()
        assert not store.read_rows()["words"].is_settled
        store.settle(replace(row, active=NEW), ["words-agent"])
    assert store.read_rows()["words"] == TeamRow("words", NEW, names=["words-agent"])


async def test_down_stops_what_a_killed_first_up_has_started(teams: TeamCommands, state: State) -> None:
    store = TeamStore(state)
    kill_while_starting(store, TeamRow("words"))
    assert teams.down("words").version == "2.0.0"
    assert store.read_rows()["words"].active is None
    with pytest.raises(InvalidSettingError, match="no team words runs"):
        teams.down("words")


async def test_down_of_a_name_without_a_team_makes_no_files(teams: TeamCommands, state: State) -> None:
    with pytest.raises(InvalidSettingError, match=r"no team teams\.json runs"):
        teams.down("teams.json")
    assert not (TeamStore(state).root / "teams.json").exists()


async def test_down_of_a_team_whose_upgrade_was_killed_keeps_the_checked_digest(
    teams: TeamCommands, state: State
) -> None:
    store = TeamStore(state)
    kill_while_starting(store, TeamRow("words", OLD, "1.0.0"))
    assert teams.down("words").active == OLD
    assert store.read_rows()["words"].before == OLD


async def test_agents_and_imports_of_two_teams_may_have_one_name(
    teams: TeamCommands, write_team: WriteTeam, state: State, environments: list[str]
) -> None:
    pets = '[imports.pets]\nurl = "https://pets.example/mcp"\n'
    first = await install(teams, state, write_team(more=pets, imports={"pets": {}}))
    assert sorted(first.claims) == ["pets@words", "words-agent@words"]
    store = TeamStore(state)
    store.write_row(TeamRow("words", active=first.digest, version="1.0.0", names=sorted(first.claims)))
    folder = write_team(name="news", agent="words-agent", more=pets, imports={"pets": {}})
    other = (await teams.pack(folder, registry=None, output=None)).team
    with pytest.raises(StateError, match="no hub in this test"):
        await teams.up(other.digest, AGREED, agree, print)


async def test_the_name_of_an_import_that_the_state_keeps_is_taken(
    teams: TeamCommands, write_team: WriteTeam, state: State
) -> None:
    write_import(state, "words-agent", ImportTable(url="http://127.0.0.1:1/mcp"))
    team = (await teams.pack(write_team(), registry=None, output=None)).team
    with pytest.raises(TeamRefusedError, match="this state has the import words-agent, too"):
        await teams.up(team.digest, AGREED, agree, print)


async def test_back_checks_what_up_checks_and_makes_environments(
    teams: TeamCommands, write_team: WriteTeam, state: State, environments: list[str]
) -> None:
    team = await install(teams, state, write_team())
    environments.clear()
    with pytest.raises(StateError, match="no hub in this test"):
        await teams.back("words", UpOptions(), print)
    assert environments == [team.digest]

    store = TeamStore(state)
    file = store.folder_of("words", team.digest) / "files" / "agents" / "word" / "agent.py"
    content = file.read_bytes()
    file.chmod(0o600)
    file.write_bytes(b"agent = 2\n")
    with pytest.raises(TeamRefusedError, match=r"agents/word/agent\.py is not as it was packed"):
        await teams.back("words", UpOptions(), print)
    file.write_bytes(content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("retinue.runtime.commands.teams.acceptance.version_of", lambda _: "0.0.0")
        with pytest.raises(TeamRefusedError, match=r"requires Retinue >=0\.0\.1; this is 0\.0\.0"):
            await teams.back("words", UpOptions(), print)

    running = TeamRow("words", team.digest)
    assert teams.find_signer_problem(running) == ""
    shutil.rmtree(state.keys)  # the key that signed it is no longer one of this state
    assert "which is not trusted" in teams.find_signer_problem(running)
    with pytest.raises(TeamRefusedError) as caught:
        await teams.back("words", UpOptions(), print)
    assert caught.value.reason == "key_unknown"


async def test_what_still_answers_of_the_same_team_is_no_other_agent_of_its_name(
    teams: TeamCommands, write_team: WriteTeam, state: State, environments: list[str]
) -> None:
    pets = '[imports.pets]\nurl = "https://pets.example/mcp"\n'
    folders = [write_team(version, more=pets, imports={"pets": {}}) for version in ("1.0.0", "1.1.0")]
    former, team = [await install(teams, state, folder) for folder in folders]
    agent = {"name": "words-agent", "status": "available", "source": "registry"}
    place = "agents/words-agent:v1.0.0"
    own = f"{place}-team-{mark_of(former.digest)}"
    own_tag = f"pets:v1.0.0-team-{mark_of(former.digest)}"
    rows = {
        own: agent | {"reference": own},
        "import": agent | {"name": "pets", "source": "imports", "reference": f"agents/words/{own_tag}"},
        "ended": agent | {"status": "unavailable", "reference": place},
    }
    foreign_rows = {
        "agent": agent | {"reference": place},
        "agent of a digest that is not here": agent | {"reference": f"{place}-team-999999999999"},
        "import of an agent's name": agent | {"source": "imports", "reference": "words-agent"},
        "import of the machine": agent | {"name": "pets", "source": "imports", "reference": "pets"},
        "agent of an import's name": agent | {"name": "pets", "reference": "agents/pets:v1.0.0"},
    }

    async def find_problem(row: dict[str, str]) -> str:
        client = AsyncMock(spec=MeshClient)
        client.get.return_value = {"agents": [row]}
        try:
            await check_mesh_names(TeamStore(state), team, client)
        except TeamRefusedError as error:
            return error.reason
        return ""

    assert {name: await find_problem(row) for name, row in rows.items()} == dict.fromkeys(rows, "")
    reasons = {name: await find_problem(row) for name, row in foreign_rows.items()}
    assert reasons == dict.fromkeys(foreign_rows, "name_taken")


async def test_specs_that_wait_while_others_are_replaced_are_skipped_for_newer_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[str] = []
    may_start = asyncio.Event()

    async def start(child: ChildProcess) -> dict[str, str]:
        started.append(child.spec.name)
        await may_start.wait()
        return {"url": "http://127.0.0.1:1"}

    async def run_on(child: ChildProcess) -> int:
        return await asyncio.Future()

    monkeypatch.setattr(ChildProcess, "start", start)
    monkeypatch.setattr(ChildProcess, "wait", run_on)
    news: list[str] = []
    supervisor = Supervisor(AsyncMock(), lambda name, _: news.append(name))
    first, second = (ChildSpec(name, (), {}) for name in ("first", "second"))
    supervisor.replace_soon([first])
    while not started:
        await asyncio.sleep(0)
    supervisor.replace_soon([])
    supervisor.replace_soon([first, second])
    may_start.set()
    async with asyncio.timeout(60):
        while news != ["first", "second"]:
            await asyncio.sleep(0)
    assert started == ["first", "second"]
    await supervisor.stop()


def test_a_stopped_program_that_says_late_that_it_is_ready_is_not_taken_for_a_running_one(
    state: State,
) -> None:
    store = TeamStore(state)
    store.write_row(TeamRow("words", NEW))
    news = TeamNews(state, lambda child, news: None)
    spec = ChildSpec("words@222222222222/agent.py", (), {})
    for specs, children in (([spec], [spec.name]), ([], [])):
        news.keep_only(specs)
        news(spec.name, {"url": "http://127.0.0.1:1", "name": "words-agent"})
        assert list(store.read_children()) == children


class Mesh:
    """Tells which nodes execute runs."""

    def __init__(self, *looks: list[str]) -> None:
        self.looks = [*looks]

    async def get(self, skill: str) -> Any:
        others = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        rows = [{"name": "hub-1", "is_own": True}, *({"name": name, "is_own": False} for name in others)]
        return {"nodes": rows}


async def test_a_rollout_in_steps_waits_for_the_end_of_other_nodes_and_is_refused_beside_them(
    teams: TeamCommands, write_team: WriteTeam, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = (await teams.pack(write_team(), registry=None, output=None)).team
    monkeypatch.setattr(upgrading, "_POLL_NODES_S", 0.001)
    lines: list[str] = []

    async def check(mesh: Any, *steps: int) -> None:
        await upgrading.refuse_other_nodes(mesh, team, steps, lines.append)

    await check(Mesh([]), 5, 100)
    await check(Mesh(["worker-1"]), 100)
    assert lines == []
    await check(Mesh(["worker-1"], ["worker-1"], []), 5, 100)
    assert lines == ["waiting for the end of the nodes that execute runs, too: worker-1"]
    monkeypatch.setattr(upgrading, "NODES_GONE_WITHIN_S", 0.01)
    with pytest.raises(TeamRefusedError, match="the nodes worker-1 execute runs") as refused:
        await check(Mesh(["worker-1"]), 5, 100)
    assert (refused.value.reason, "--steps 100" in refused.value.remedy) == ("nodes", True)


async def test_two_teams_with_a_model_of_one_name_have_budgets_of_their_own(
    teams: TeamCommands, write_team: WriteTeam, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"provider": "openai", "model": "m-1", "max_tokens_per_day": 5000, "backend": "api"}
    budget = "[budget]\nmax_cost_per_day = 5.0\n"
    model = "".join(f"{key} = {orjson.dumps(value).decode()}\n" for key, value in limits.items())
    settings = Settings.model_validate({"llm": {"writer": limits}})
    spec, usage = ModelSpec("writer", prices=Prices(1.0, 1.0)), Usage(1000, 500)
    with Ledger(state.spending / "one@writer.json", spec).reserve(ModelPrompt("", "x", 10), "r") as spent:
        spent.settle(usage)
    shown = []
    for name in ("one", "two"):
        folder = write_team(name=name, more=f"[llm.writer]\n{model}{budget}")
        team = (await teams.pack(folder, registry=None, output=None)).team
        children = team_children(TeamStore(state), TeamRow(name), team, "http://hub", {})
        environment = next(child.environment for child in children if child.name.endswith("llm.writer"))
        monkeypatch.setenv("RETINUE_TEAM", environment["RETINUE_TEAM"])
        assert environment["RETINUE_TEAM_BUDGET"] == '{"max_cost_per_day":5.0}'
        states = list_model_states(settings, state, {"OPENAI_API_KEY": "k"})
        shown += [row.spending for row in states if row.name == "writer"]
    assert ["1,500 of 5,000 tokens" in text for text in shown] == [True, False]


async def test_a_program_that_prints_a_line_of_any_length_is_read_to_its_end(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nhead -c 300000 /dev/zero | tr '\\0' x\necho\necho the last line\n")
    program.chmod(0o700)
    spec = ChildSpec("talks", (), {"PATH": os.environ["PATH"]}, program=str(program))
    lines: list[str] = []
    with pytest.raises(ChildFailedError, match="the last line"):
        await ChildProcess(spec, AsyncMock(), lambda name, line: lines.append(line)).start()
    assert "".join(lines) == "x" * 300_000 + "the last line"
    assert max(map(len, lines)) < 200_000


async def test_programs_wait_for_policies_that_cannot_be_in_force_and_others_stop(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced: list[list[str]] = []
    runs, ends, comes = (ChildSpec(name, (), {}) for name in ("runs", "ends", "comes"))
    supervisor = Mock(children=[ChildProcess(spec, AsyncMock()) for spec in (runs, ends)])
    supervisor.replace_soon = lambda specs: replaced.append([spec.name for spec in specs])
    broken = InvalidSettingError("own.cedar", "broken", remedy="correct it")
    monkeypatch.setattr(children_part, "catch_up", AsyncMock(side_effect=[broken, None]))
    with pytest.raises(InvalidSettingError, match="broken"):
        await children_part.replace_children(Mock(), supervisor, [runs, comes])
    await children_part.replace_children(Mock(), supervisor, [runs, comes])
    assert replaced == [["runs"], ["runs", "comes"]]
