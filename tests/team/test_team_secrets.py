"""The values of secrets belong to one start of a digest: what runs keeps its own while another one starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from retinue.runtime.commands.teams import commands as team_commands
from retinue.runtime.commands.teams.commands import TeamCommands, UpOptions
from retinue.runtime.teams.programs import list_children
from retinue.runtime.teams.store import TeamStore
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
    modes = {path.stat().st_mode & 0o777 for path in words.store.root.glob("words/secrets*.json")}
    assert (len(words.list_files()), modes) == (2, {0o600})
    words.teams.down("words")
    assert words.list_files() == {'{"KEY":"one"}'}
