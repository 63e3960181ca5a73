"""What a row keeps for ``up --back`` and ``down``: both digests before, references, the form of the data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from retinue.cli.teams.running import up as up_command
from retinue.core.errors import TeamRefusedError
from retinue.runtime.commands.teams import commands as team_commands
from retinue.runtime.commands.teams.commands import TeamCommands, UpOptions
from retinue.runtime.commands.teams.upgrading import RolloutOptions
from retinue.runtime.teams.rollout import read_rollout
from retinue.runtime.teams.store import TeamRow, TeamStore
from retinue.storage.state import State
from retinue.team.package import Team
from tests.team.conftest import WriteTeam
from tests.team.test_team_rollout_stages import Hub

SECRETS = 'env = { KEY = "${KEY}" }\n[secrets]\nKEY = "key of a service"\n'
AT_ONCE = RolloutOptions(steps=(100,), hold_s=0.0)
AGREED = UpOptions(is_agreed=True, rollout=AT_ONCE)


def agree(consent: object) -> bool:
    return True


class Words:
    """The team ``words`` on a hub that starts and checks all that it is told to."""

    def __init__(self, teams: TeamCommands, state: State, write_team: WriteTeam) -> None:
        self.teams, self.state, self.store, self._write = teams, state, TeamStore(state), write_team

    async def pack(self, version: str, more: str = "", data: int = 1) -> Team:
        folder = self._write(version, more=more, data=data)
        return (await self.teams.pack(folder, registry=None, output=None)).team

    async def up(self, version: str, more: str = "", options: UpOptions = AGREED, data: int = 1) -> Team:
        """Pack and start a version; another one that runs is replaced."""
        team, active = await self.pack(version, more, data), self.row.active
        await self.teams.up(team.digest, options, agree, print)
        if active not in (None, team.digest):
            await self.finish(team)
        return team

    async def finish(self, team: Team) -> None:
        """Let the hub go through the stages of the rollout that was asked for."""
        active = self.teams.read(self.row)
        assert active is not None
        await Hub(self.store, self.state, active, team).run()

    async def back(self, options: UpOptions = UpOptions()) -> None:  # noqa: B008 - it is frozen
        await self.teams.back("words", options, print)

    @property
    def row(self) -> TeamRow:
        return self.store.read_rows().get("words", TeamRow("words"))

    def forget(self, *keys: str) -> None:
        """Make the row one of the version before, which does not have these keys."""
        rows = orjson.loads(self.store.rows_file.read_bytes())
        for key in keys:
            del rows["words"][key]
        self.store.rows_file.write_bytes(orjson.dumps(rows))


@pytest.fixture
def words(teams: TeamCommands, state: State, write_team: WriteTeam, monkeypatch: pytest.MonkeyPatch) -> Words:
    async def return_1(*_: object, **__: object) -> Any:
        return 1

    async def start_hub(*_: object, **__: object) -> str:
        return "http://127.0.0.1:1"

    monkeypatch.setattr(team_commands, "ensure_hub", start_hub)
    monkeypatch.setattr(team_commands, "wait_until_ready", return_1)
    monkeypatch.setattr(team_commands, "pass_check", return_1)
    monkeypatch.setattr(team_commands, "refuse_other_nodes", return_1)
    monkeypatch.setattr(TeamCommands, "_follow", return_1)
    return Words(teams, state, write_team)


async def test_a_team_that_is_down_goes_back_to_what_ran_and_then_to_the_digest_before(words: Words) -> None:
    first, second = await words.up("1.3.2"), await words.up("1.4.0")
    assert (words.row.active, words.row.before) == (second.digest, first.digest)
    words.teams.down("words")
    assert (words.row.active, words.row.before) == (None, second.digest)
    await words.back()
    assert (words.row.active, words.row.before) == (second.digest, first.digest)

    words.teams.down("words")
    await words.up("1.4.0")
    assert (words.row.active, words.row.before) == (second.digest, first.digest)
    await words.back()
    await words.finish(first)
    assert (words.row.active, words.row.before) == (first.digest, second.digest)

    words.teams.down("words")
    third = await words.up("1.5.0")
    assert (words.row.active, words.row.before) == (third.digest, first.digest)


async def test_the_files_of_the_digest_before_the_stopped_one_are_kept(words: Words) -> None:
    first = await words.up("1.0.0")
    await words.up("1.1.0")
    words.teams.down("words")
    row = replace(words.row, versions=dict.fromkeys((f"sha256:{n:064}" for n in range(4)), "9.0.0"))
    words.store.keep_only(row)
    assert words.store.has("words", first.digest)


async def test_a_row_of_the_version_before_goes_back_to_the_stopped_digest(words: Words) -> None:
    first = await words.up("1.0.0", data=2)
    words.teams.down("words")
    words.forget("earlier", "references", "data")
    with pytest.raises(TeamRefusedError, match="its data has form 1, that of the one before 2"):
        await words.up("1.1.0")
    await words.back()
    assert (words.row.active, words.row.before, words.row.reference) == (first.digest, None, first.digest)
    words.forget("earlier", "references", "data")
    await words.up("1.2.0", data=2)
    await words.back()
    await words.finish(first)
    assert (words.row.active, words.row.reference) == (first.digest, first.digest)


async def test_an_older_form_of_the_data_is_refused_after_down_until_the_data_is_moved_away(
    words: Words, tmp_path: Path
) -> None:
    await words.up("1.0.0", data=2)
    words.teams.down("words")
    with pytest.raises(TeamRefusedError, match="its data has form 1, that of the one before 2") as refused:
        await words.up("1.1.0")
    assert (refused.value.reason, "move" in refused.value.remedy) == ("data", True)
    words.store.data_folder("words").rename(tmp_path / "data of 1.0.0")
    await words.up("1.1.0")
    words.teams.down("words")
    await words.up("1.2.0", data=2)
    assert words.row.data == 2
    with pytest.raises(TeamRefusedError, match="its data has form 1, that of the running one 2"):
        await words.back()


async def test_each_digest_has_the_reference_that_it_was_started_with(words: Words) -> None:
    await words.pack("1.0.0")
    await words.teams.up("words:1.0.0", UpOptions(), agree, print)
    first = words.row.active
    second = await words.up("1.1.0")
    assert words.row.reference == second.digest
    await words.back()
    rollout = read_rollout(words.row)
    assert rollout is not None
    assert (rollout.new, rollout.reference) == (first, "words:1.0.0")
    words.teams.down("words")
    await words.back()
    assert (words.row.active, words.row.reference) == (second.digest, second.digest)


@pytest.mark.parametrize(
    ("error", "reason"), [(KeyboardInterrupt(), "its command was stopped"), (OSError(), "OSError")]
)
async def test_a_first_start_that_is_stopped_says_so(state: State, error: BaseException, reason: str) -> None:
    store = TeamStore(state)

    def start() -> None:
        with store.changing("words") as row, store.starting(row, ["a"]):
            store.write_row(TeamRow("words", "sha256:" + "1" * 64, "1.0.0", undo={}))
            raise error

    with pytest.raises(type(error)):
        start()
    assert store.read_rows()["words"].failed["reason"] == reason


async def test_back_takes_secrets_and_the_options_of_a_rollout(words: Words, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.touch(mode=0o600)
    file.write_text("KEY=first")
    with_keys = replace(AGREED, secrets_file=file)
    first = await words.up("1.0.0", SECRETS, with_keys)
    await words.up("1.1.0", SECRETS, with_keys)
    file.write_text("KEY=second")
    options = RolloutOptions(steps=(10, 100), hold_s=7.0, drain_s=8.0)
    await words.back(UpOptions(secrets_file=file, rollout=options))
    rollout = read_rollout(words.row)
    assert rollout is not None
    assert (rollout.new, rollout.steps, rollout.hold_s, rollout.drain_s) == (
        first.digest,
        (10, 100),
        7.0,
        8.0,
    )
    assert words.store.read_secrets(words.row, first.digest) == {"KEY": "second"}


@pytest.mark.parametrize("option", ["--yes", "--downgrade"])
def test_back_refuses_the_options_that_have_no_meaning_for_it(option: str) -> None:
    done = CliRunner().invoke(up_command, ["--back", "words", option])
    assert (done.exit_code, f"{option} does not go with --back" in done.output) == (2, True)
