"""What a registry, a mirror or a file could change about a team is refused before anything is unpacked."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from retinue.core.errors import BusyError, InvalidSettingError, TeamRefusedError
from retinue.oci.codec.reference import digest_of
from retinue.processes.environment import fill_variables
from retinue.runtime.commands.teams.commands import TeamCommands, UpOptions
from retinue.runtime.commands.teams.source import read_source
from retinue.runtime.teams.programs import import_table, variables_of
from retinue.runtime.teams.store import TeamRow, TeamStore
from retinue.storage.card_keys import CardKeys
from retinue.storage.state import State
from retinue.team.consent import Consent, list_env, list_programs
from retinue.team.definition import TeamImport, parse_definition
from retinue.team.layout_file import LayoutFile
from retinue.team.signature import SIGNATURE_TYPE, signature_tag
from tests.team.conftest import WriteTeam


def refuse(consent: Consent) -> bool:
    return False


def blob(state: State, digest: str, name: str = "words") -> Path:
    return state.registry / "teams" / name / "blobs" / "sha256" / digest.removeprefix("sha256:")


async def test_a_team_that_this_state_packed_is_shown_and_asked_about(
    teams: TeamCommands, write_team: WriteTeam, state: State
) -> None:
    packed = await teams.pack(write_team(more='[secrets]\nWORD_KEY = "a key"\n'), registry=None, output=None)
    shown: list[Consent] = []

    def ask(consent: Consent) -> bool:
        shown.append(consent)
        return False

    options = UpOptions(secrets_file=write_secrets(state.root / "s", "WORD_KEY=v"))
    with pytest.raises(TeamRefusedError, match="nobody agreed"):
        await teams.up("words", options, ask, print)
    assert (shown[0].digest, shown[0].signer) == (packed.team.digest, "this state")
    assert "WORD_KEY: a key" in "\n".join(shown[0].render())
    assert not TeamStore(state).has("words", packed.team.digest)


def write_secrets(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


async def test_an_unsigned_team_and_one_of_an_unknown_key_are_refused(
    teams: TeamCommands, write_team: WriteTeam, state: State
) -> None:
    packed = await teams.pack(write_team(), registry=None, output=None)
    (state.keys / "card-signing.json").unlink()
    with pytest.raises(TeamRefusedError) as caught:
        await teams.up(packed.team.digest, UpOptions(is_agreed=True), refuse, print)
    assert caught.value.reason == "key_unknown"
    change_index(state, lambda rows: [row for row in rows if row["artifactType"] != SIGNATURE_TYPE])
    with pytest.raises(TeamRefusedError) as caught:
        await teams.up(packed.team.digest, UpOptions(is_agreed=True), refuse, print)
    assert caught.value.reason == "unsigned"


def change_index(state: State, change: Callable[[list[Any]], list[Any]]) -> None:
    """What a registry could do: other entries in the index of the team's repository."""
    path = state.registry / "teams" / "words" / "index.json"
    index = orjson.loads(path.read_bytes())
    path.write_bytes(orjson.dumps({**index, "manifests": change(index["manifests"])}))


async def test_a_signature_moved_from_another_team_proves_nothing(
    teams: TeamCommands, write_team: WriteTeam, state: State
) -> None:
    one = await teams.pack(write_team(), registry=None, output=None)
    other = await teams.pack(write_team(version="1.1.0"), registry=None, output=None)

    def move(rows: list[Any]) -> list[Any]:
        tag = "org.opencontainers.image.ref.name"
        kept = [row for row in rows if row["annotations"][tag] != signature_tag(one.team.digest)]
        for row in kept:
            if row["annotations"][tag] == signature_tag(other.team.digest):
                row["annotations"][tag] = signature_tag(one.team.digest)
        return kept

    change_index(state, move)
    with pytest.raises(TeamRefusedError) as caught:
        await teams.up(one.team.digest, UpOptions(is_agreed=True), refuse, print)
    assert caught.value.reason == "changed"


async def test_a_signature_moved_to_another_repository_proves_nothing(
    teams: TeamCommands, write_team: WriteTeam, state: State
) -> None:
    await teams.pack(write_team(), registry=None, output=None)
    other = await teams.pack(write_team(name="other"), registry=None, output=None)
    moved = (await teams.pull("words")).signatures
    pulled = replace(await teams.pull(other.team.digest), signatures=moved)
    with pytest.raises(TeamRefusedError) as caught:
        pulled.verify(CardKeys(state.keys).trusted())
    assert caught.value.reason == "changed"


async def test_the_hosts_of_a_document_are_shown_before_anything_is_unpacked(
    teams: TeamCommands, write_team: WriteTeam, state: State
) -> None:
    more = '[imports.pets]\nopenapi = "documents/pets.json"\n'
    folder = write_team()
    (folder / "documents").mkdir()
    operation = {"responses": {"200": {"description": "x"}}}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "P", "version": "1"},
        "paths": {"/": {"get": operation}},
    }
    document["servers"] = [{"url": "https://pets.example/v1"}]
    (folder / "documents" / "pets.json").write_bytes(orjson.dumps(document))
    packed = await teams.pack(write_team(more=more, imports={"pets": {}}), registry=None, output=None)
    shown: list[Consent] = []

    def ask(consent: Consent) -> bool:
        shown.append(consent)
        return False

    with pytest.raises(TeamRefusedError, match="nobody agreed"):
        await teams.up("words", UpOptions(), ask, print)
    assert shown[0].hosts == ("pets.example",)
    assert not TeamStore(state).has("words", packed.team.digest)


async def test_a_team_does_not_get_the_secret_of_another_team(
    teams: TeamCommands, write_team: WriteTeam, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = '[secrets]\nWORD_KEY = "a key"\n'
    first = await teams.pack(write_team(more=more), registry=None, output=None)
    other = await teams.pack(write_team(name="other", more=more), registry=None, output=None)
    store = TeamStore(state)
    (store.root / "words").mkdir(parents=True)
    kept = store.keep_secrets("words", {"WORD_KEY": "value of the first"})
    active = TeamRow("words", active=first.team.digest, secrets={first.team.digest: kept})
    store.write_row(replace(active, version="1.0.0", names=["words-agent@words"]))
    monkeypatch.delenv("WORD_KEY", raising=False)
    with pytest.raises(InvalidSettingError, match=r"secrets are missing: WORD_KEY \(a key\)"):
        await teams.up(other.team.digest, UpOptions(is_agreed=True), refuse, print)
    row = TeamRow("other", active=other.team.digest)
    assert "value of the first" not in variables_of(store, row, other.team.digest).values()
    assert variables_of(store, active, first.team.digest)["WORD_KEY"] == "value of the first"


async def test_yes_needs_the_digest(teams: TeamCommands, write_team: WriteTeam) -> None:
    await teams.pack(write_team(), registry=None, output=None)
    with pytest.raises(InvalidSettingError, match="no digest"):
        await teams.up("words:1.0.0", UpOptions(is_agreed=True), refuse, print)


async def test_a_layer_that_was_changed_in_the_registry_is_refused_and_nothing_is_unpacked(
    teams: TeamCommands, write_team: WriteTeam, state: State
) -> None:
    packed = await teams.pack(write_team(), registry=None, output=None)
    pulled = await teams.pull("words")
    layer = pulled.manifest.layers[1]
    path = blob(state, layer.digest)
    path.chmod(0o600)
    path.write_bytes(path.read_bytes().replace(b"agent = 1", b"agent = 2"))
    with pytest.raises(Exception, match="is not the file of its list"):
        await teams.up(packed.team.digest, UpOptions(is_agreed=True), refuse, print)
    assert not TeamStore(state).has("words", packed.team.digest)


async def test_a_manifest_that_replaced_another_behind_a_tag_is_not_the_agreed_one(
    teams: TeamCommands, write_team: WriteTeam
) -> None:
    one = await teams.pack(write_team(), registry=None, output=None)
    await teams.pack(write_team(code="agent = 2\n"), registry=None, output=None)
    pulled = await teams.pull(f"words:1.0.0@{one.team.digest}")
    assert pulled.team.digest == one.team.digest
    assert (await teams.pull("words:1.0.0")).team.digest != one.team.digest


async def test_an_older_signed_version_is_refused_unless_it_is_asked_for(
    teams: TeamCommands, write_team: WriteTeam, state: State
) -> None:
    old = await teams.pack(write_team("1.3.2"), registry=None, output=None)
    TeamStore(state).write_row(TeamRow("words", highest="1.4.0"))
    with pytest.raises(TeamRefusedError) as caught:
        await teams.up(old.team.digest, UpOptions(is_agreed=True), refuse, print)
    assert (caught.value.reason, "--downgrade" in caught.value.remedy) == ("downgrade", True)
    with pytest.raises(TeamRefusedError, match="nobody agreed"):
        await teams.up(old.team.digest, UpOptions(downgrade=True), refuse, print)


async def test_all_missing_secrets_are_named_at_once_and_files_of_others_are_refused(
    teams: TeamCommands, write_team: WriteTeam, tmp_path: Path
) -> None:
    more = '[secrets]\nTEAM_KEY_A = "first"\nTEAM_KEY_B = "second"\n'
    packed = await teams.pack(write_team(more=more), registry=None, output=None)
    with pytest.raises(InvalidSettingError, match=r"TEAM_KEY_A \(first\), TEAM_KEY_B \(second\)"):
        await teams.up(packed.team.digest, UpOptions(is_agreed=True), refuse, print)
    open_file = write_secrets(tmp_path / "open", "TEAM_KEY_A=x", 0o644)
    with pytest.raises(InvalidSettingError, match="others may read"):
        await teams.up(packed.team.digest, UpOptions(is_agreed=True, secrets_file=open_file), refuse, print)


async def test_two_commands_do_not_change_one_team_at_once(
    teams: TeamCommands, write_team: WriteTeam, state: State
) -> None:
    packed = await teams.pack(write_team(), registry=None, output=None)
    with TeamStore(state).changing("words"), pytest.raises(BusyError):
        await teams.up(packed.team.digest, UpOptions(is_agreed=True), refuse, print)


async def test_a_killed_unpacking_leaves_nothing_that_is_used(state: State) -> None:
    store = TeamStore(state)
    digest = "sha256:" + "1" * 64
    with store.changing("words"):
        half = store.root / "words" / ".incoming-1"
        half.mkdir()
        (half / "agent.py").write_text("half")
    assert not store.has("words", digest)
    with store.changing("words"):
        assert not half.exists()
        store.install("words", digest, {"files/a/b": b"1", "config.json": b"{}"})
    assert (store.folder_of("words", digest) / "files" / "a" / "b").read_bytes() == b"1"


async def test_a_layout_file_carries_team_and_signature(
    teams: TeamCommands, write_team: WriteTeam, state: State, tmp_path: Path
) -> None:
    file = tmp_path / "words.tar"
    packed = await teams.pack(write_team(), registry=None, output=file)
    pulled = await teams.pull(f"{file}@{packed.team.digest}")
    assert pulled.verify(CardKeys(state.keys).trusted()).owner == "this state"
    assert len(await pulled.pull_files()) == len(packed.team.files)
    content = file.read_bytes().replace(b"agent = 1\n", b"agent = 2\n")
    assert digest_of(content) != digest_of(file.read_bytes())
    file.write_bytes(content)
    changed = await teams.pull(str(file))
    with pytest.raises(TeamRefusedError, match="other content"):
        await changed.pull_files()


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("key.txt", "token = 'ghp_" + "a1B2" * 9 + "'", "it holds a key"),
        (".env", "A=1", "never part"),
        ("evil.pth", "import os", "never part"),
        ("Agent.py", "x", "upper and lower case"),
    ],
)
async def test_pack_refuses_what_no_digest_should_have(
    teams: TeamCommands, write_team: WriteTeam, name: str, content: str, problem: str
) -> None:
    folder = write_team()
    (folder / "agents" / "word" / name).write_text(content)
    with pytest.raises(InvalidSettingError, match=problem):
        read_source(folder).check_secrets({})


async def test_pack_refuses_links_and_a_stale_lock(teams: TeamCommands, write_team: WriteTeam) -> None:
    folder = write_team()
    (folder / "agents" / "word" / "agent.py").write_text("agent = 2\n")
    with pytest.raises(InvalidSettingError, match=r"agent\.py has changed since it was locked"):
        await teams.pack(folder, registry=None, output=None)
    (folder / "agents" / "word" / "link.py").symlink_to("/etc/passwd")
    with pytest.raises(InvalidSettingError, match="it is a link"):
        await teams.pack(folder, registry=None, output=None)


@pytest.mark.parametrize("text", ["$HUB_API_KEY", "$$", "a$", "${WORD_KEY}$HUB_API_KEY"])
@pytest.mark.parametrize("key", ["env", "headers"])
def test_a_dollar_outside_a_declared_placeholder_is_refused(key: str, text: str) -> None:
    head = 'name = "words"\nversion = "1.0.0"\n[secrets]\nWORD_KEY = "k"\n'
    table = f'{head}[imports.pets]\n{key} = {{ A = "{text}" }}\n'
    with pytest.raises(InvalidSettingError, match=r"imports.pets has a \$"):
        parse_definition(f'{table}url = "http://pets.example"\n'.encode())


async def test_the_value_of_a_secret_is_not_filled_from_the_environment_of_the_hub(
    teams: TeamCommands, write_team: WriteTeam, state: State
) -> None:
    team = (await teams.pack(write_team(), registry=None, output=None)).team
    table = TeamImport(url="http://pets.example", headers={"A": "${WORD_KEY}"})
    filled = import_table(TeamStore(state), team, "pets", table, {"WORD_KEY": "a$HUB_API_KEY"})
    assert fill_variables(filled.headers, {"HUB_API_KEY": "secret"}) == {"A": "a$HUB_API_KEY"}


def test_a_sparse_member_of_a_layout_file_is_refused_before_it_is_read() -> None:
    member = tarfile.TarInfo("index.json")
    member.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(1 << 40)}
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member)
    with pytest.raises(TeamRefusedError) as caught:
        LayoutFile(lambda: io.BytesIO(target.getvalue()), "words.tar")
    assert caught.value.reason == "too_large"


async def test_the_program_of_an_import_is_a_plain_name_and_the_consent_shows_it(
    teams: TeamCommands, write_team: WriteTeam
) -> None:
    with pytest.raises(ValueError, match="not a path"):
        TeamImport(pypi="pets==1.0.0", bin="/bin/sh")
    team = (await teams.pack(write_team(), registry=None, output=None)).team
    table = TeamImport(pypi="pets==1.0.0", bin="python", args=("-c", "x"), env={"KEY": "v"})
    definition = team.definition.model_copy(update={"imports": {"pets": table}})
    shown = list_programs(replace(team, definition=definition))[-1]
    assert shown.endswith('program python args ["-c", "x"]')
    assert list_env(replace(team, definition=definition)) == {"pets KEY": '"v"'}
