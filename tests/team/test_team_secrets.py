"""The values of secrets belong to one start of a digest: what runs keeps its own while another one starts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import orjson
import pytest

from retinue.core.errors import ChildFailedError, TeamRefusedError
from retinue.runtime.commands.teams import commands as team_commands
from retinue.runtime.commands.teams.commands import TeamCommands, UpOptions
from retinue.runtime.commands.teams.secret_values import find_secrets
from retinue.runtime.parts.children import TeamNews
from retinue.runtime.supervisor import ChildProcess, ChildSpec, Supervisor
from retinue.runtime.teams.programs import list_children
from retinue.runtime.teams.store import TeamRow, TeamStore
from retinue.storage.files import TEMPORARY_SUFFIX
from retinue.storage.state import State
from retinue.team.package import Team
from tests.team.conftest import WriteTeam
from tests.team.test_team_rollout_stages import Hub

SECRETS = """
env = { KEY = "${KEY}" }
[secrets]
KEY = "key of a service"
[rollout]
steps = [100]
hold_s = 0.0
drain_s = 60.0
"""


class Words:
    """The team ``words``, whose agent gets the secret KEY, in two versions on a hub of the test."""

    def __init__(self, teams: TeamCommands, state: State, packed: list[Team]) -> None:
        self.teams, self.state, self.store = teams, state, TeamStore(state)
        self.old, self.new = packed

    async def up(self, team: Team) -> None:
        await self.teams.up(team.digest, UpOptions(is_agreed=True), lambda consent: True, print)

    def read_keys(self) -> dict[str, str]:
        """The value of KEY in the programs that should run, by the version of their digest."""
        children = list_children(self.state, "http://hub", {})
        versions = {team.digest[7:19]: team.version for team in (self.old, self.new)}
        return {versions[child.name.partition("@")[2][:12]]: child.environment["KEY"] for child in children}

    def list_files(self) -> set[str]:
        return {path.read_text() for path in self.store.root.glob("words/secrets*.json")}


@pytest.fixture
async def words(
    teams: TeamCommands, state: State, write_team: WriteTeam, monkeypatch: pytest.MonkeyPatch
) -> Words:
    async def return_1(*_: object, **__: object) -> Any:
        return 1

    async def start_hub(*_: object, **__: object) -> str:
        return "http://127.0.0.1:1"

    monkeypatch.setattr(team_commands, "ensure_hub", start_hub)
    monkeypatch.setattr(team_commands, "wait_until_ready", return_1)
    monkeypatch.setattr(team_commands, "pass_check", return_1)
    monkeypatch.setattr(TeamCommands, "_follow", return_1)
    packed = []
    for version in ("1.0.0", "1.1.0"):
        folder = write_team(version, more=SECRETS)
        packed.append((await teams.pack(folder, registry=None, output=None)).team)
    words = Words(teams, state, packed)
    monkeypatch.setenv("KEY", "one")
    await words.up(words.old)
    monkeypatch.setenv("KEY", "two")
    return words


async def test_values_come_from_a_file_the_environment_or_systemd_in_this_order(
    teams: TeamCommands, write_team: WriteTeam, state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("IN_FILE", "IN_ENVIRONMENT", "OF_SYSTEMD")
    more = "[secrets]\n" + "".join(f'{name} = "a key"\n' for name in names)
    team = (await teams.pack(write_team(more=more), registry=None, output=None)).team
    credentials, file = tmp_path / "credentials", tmp_path / "keys"
    credentials.mkdir()
    for name in names:
        (credentials / name).write_text("of systemd\n")
        monkeypatch.delenv(name, raising=False)
    file.touch(mode=0o600)
    file.write_text("# keys\nIN_FILE = of the file\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
    monkeypatch.setenv("IN_ENVIRONMENT", "of the environment")
    monkeypatch.setenv("IN_FILE", "of the environment")
    values = find_secrets(TeamStore(state), TeamRow("words"), team, file)
    assert [values[name] for name in names] == ["of the file", "of the environment", "of systemd"]


async def test_a_rotated_credential_of_systemd_replaces_the_value_that_is_kept(
    words: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "credentials").mkdir()
    (tmp_path / "credentials" / "KEY").write_text("rotated\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    monkeypatch.delenv("KEY")
    await words.up(words.old)
    assert words.read_keys() == {"1.0.0": "rotated"}
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    await words.up(words.old)
    assert words.read_keys() == {"1.0.0": "rotated"}, "what is kept counts where nothing else says it"


async def test_a_digest_keeps_its_secrets_while_another_one_starts_with_new_values(words: Words) -> None:
    assert words.read_keys() == {"1.0.0": "one"}
    await words.up(words.new)
    assert words.read_keys() == {"1.0.0": "one"}, "the programs that serve are not started again"
    hub = Hub(words.store, words.state, words.old, words.new)
    stages: set[tuple[str, str]] = set()
    hub.apply = lambda: stages.update(words.read_keys().items())  # type: ignore[method-assign]
    await hub.run()
    assert stages == {("1.0.0", "one"), ("1.1.0", "two")}
    assert words.read_keys() == {"1.1.0": "two"}


async def test_a_rollout_that_fails_leaves_the_secrets_before(
    words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    await words.up(words.new)
    hub = Hub(words.store, words.state, words.old, words.new)
    hub.exam = "the key is refused"
    row = await hub.run()
    assert (row.active, row.failed["digest"]) == (words.old.digest, words.new.digest)
    assert words.read_keys() == {"1.0.0": "one"}
    assert words.list_files() == {'{"KEY":"one"}'}
    monkeypatch.delenv("KEY")
    await words.up(words.new)
    hub.exam = ""
    await hub.run()
    assert words.read_keys() == {"1.1.0": "one"}, (
        "a value that is not named again is that of the digest before"
    )


async def test_the_secrets_of_a_state_of_an_earlier_version_count_until_both_digests_have_their_own(
    words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, former = words.store, words.store.root / "words" / "secrets.json"
    former.write_bytes(orjson.dumps({"KEY": "former"}))
    rows = orjson.loads(store.rows_file.read_bytes())
    del rows["words"]["secrets"]
    store.rows_file.write_bytes(orjson.dumps(rows))
    assert words.read_keys() == {"1.0.0": "former"}
    monkeypatch.delenv("KEY")
    await words.up(words.new)
    await Hub(store, words.state, words.old, words.new).run()
    assert words.read_keys() == {"1.1.0": "former"}
    row = store.read_rows()["words"]
    assert store.read_secrets(row, words.old.digest) == {"KEY": "former"}, "for `up --back`"
    store.write_row(replace(row, before=None))
    with store.changing("words"):
        assert not former.exists()


async def test_the_files_of_secrets_are_private_and_those_of_killed_commands_are_removed(
    words: Words,
) -> None:
    words.store.keep_secrets("words", {"KEY": "killed"})
    written = words.store.root / "words" / f".secrets-0.json.0{TEMPORARY_SUFFIX}"
    written.write_text("half")
    modes = {path.stat().st_mode & 0o777 for path in words.store.root.glob("words/secrets*.json")}
    assert (len(words.list_files()), modes) == (2, {0o600})
    words.teams.down("words")
    assert words.list_files() == {'{"KEY":"one"}'}
    assert not written.exists()


async def test_up_of_the_digest_that_runs_gives_its_programs_other_values_or_the_former_ones_back(
    words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    during: list[dict[str, str]] = []

    async def wait(*arguments: Any) -> int:
        during.append(words.read_keys())
        (child,) = list_children(words.state, "http://hub", {})
        assert arguments[-1] == {child.name: child.secrets}
        return 1

    async def fail(*_: object) -> int:
        during.append(words.read_keys())
        raise TeamRefusedError("check_failed", "words", "the key is refused")

    monkeypatch.setattr(team_commands, "wait_until_ready", wait)
    await words.up(words.old)
    assert (during, words.read_keys()) == ([{"1.0.0": "two"}], {"1.0.0": "two"})
    await words.up(words.old)
    assert len(during) == 1, "nothing is started again for equal values"

    monkeypatch.setattr(team_commands, "wait_until_ready", fail)
    monkeypatch.setenv("KEY", "bad")
    with pytest.raises(TeamRefusedError, match="the key is refused"):
        await words.up(words.old)
    assert (during[1:], words.read_keys()) == ([{"1.0.0": "bad"}], {"1.0.0": "two"})
    row = words.store.read_rows()["words"]
    assert (row.active, row.is_settled, row.failed) == (words.old.digest, True, {})
    assert words.list_files() == {'{"KEY":"two"}'}


class Programs:
    """Children that start at once, unless their KEY is ``bad``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.story: list[str] = []

        async def start(child: ChildProcess) -> dict[str, str]:
            key = child.spec.environment["KEY"]
            self.story.append(f"start {child.spec.name} {key}")
            if key == "bad":
                raise ChildFailedError(child.spec.name, "it ended with code 1")
            return {"url": "http://127.0.0.1:1", **child.spec.facts}

        async def stop(child: ChildProcess) -> None:
            self.story.append(f"stop {child.spec.name} {child.spec.environment['KEY']}")

        async def run_on(_: ChildProcess) -> int:
            return await asyncio.Future()

        monkeypatch.setattr(ChildProcess, "start", start)
        monkeypatch.setattr(ChildProcess, "stop", stop)
        monkeypatch.setattr(ChildProcess, "wait", run_on)
        monkeypatch.setattr(ChildProcess, "is_ready", True)

    async def wait_for(self, *story: str) -> None:
        async with asyncio.timeout(60):
            while self.story != [*story]:
                await asyncio.sleep(0.005)
        self.story.clear()


def specs_with(key: str) -> list[ChildSpec]:
    return [
        ChildSpec(f"words@1/{name}", (), {"KEY": key}, overlaps=True, facts={"secrets": key})
        for name in ("a", "b")
    ]


async def test_a_program_with_other_secrets_answers_before_the_one_before_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    programs, news = Programs(monkeypatch), list[Any]()
    supervisor = Supervisor(AsyncMock(), lambda name, report: news.append(report))
    supervisor.replace_soon(specs_with("one"))
    await programs.wait_for("start words@1/a one", "start words@1/b one")
    supervisor.replace_soon(specs_with("two"))
    first = ("start words@1/a two", "stop words@1/a one")
    await programs.wait_for(*first, "start words@1/b two", "stop words@1/b one")
    assert [report["secrets"] for report in news] == ["one", "one", "two", "two"]

    supervisor.replace_soon(specs_with("bad"))
    await programs.wait_for("start words@1/a bad")
    async with asyncio.timeout(60):
        while not isinstance(news[-1], ChildFailedError):
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)
    assert programs.story == [], "both former programs run on"
    supervisor.replace_soon(specs_with("two"))
    supervisor.replace_soon(specs_with("three"))
    first = ("start words@1/a three", "stop words@1/a two")
    await programs.wait_for(*first, "start words@1/b three", "stop words@1/b two")
    await supervisor.stop()


def test_a_program_whose_successor_does_not_start_is_shown_as_failing_until_the_values_change(
    state: State,
) -> None:
    store = TeamStore(state)
    store.write_row(TeamRow("words", active="sha256:" + "1" * 64))
    news, (spec, _) = TeamNews(state, lambda child, report: None), specs_with("one")
    news.keep_only([spec])
    news(spec.name, {"url": "http://127.0.0.1:1", "name": "a", "secrets": "one"})
    news(spec.name, ChildFailedError(spec.name, "it ended with code 1"))
    row = store.read_children()[spec.name]
    assert (row["url"], row["secrets"], "code 1" in row["error"]) == ("http://127.0.0.1:1", "one", True)
    news.keep_only([spec])
    row = store.read_children()[spec.name]
    assert (row["url"], row["error"]) == ("http://127.0.0.1:1", "")
    news(spec.name, None)
    news(spec.name, ChildFailedError(spec.name, "it ended with code 1"))
    news.keep_only([spec])
    assert store.read_children()[spec.name]["error"], "one that runs no more stays failed"
