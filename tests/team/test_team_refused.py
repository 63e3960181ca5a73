"""What no team may say, in its own definition or in a config from elsewhere: names, variables, locks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest
import rfc8785

from retinue.core.errors import InvalidSettingError, TeamRefusedError
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.runtime.commands.teams.commands import TeamCommands, UpOptions
from retinue.runtime.teams.programs import CONFIG, read_installed
from retinue.runtime.teams.store import TeamStore
from retinue.storage.state import State
from retinue.team.consent import Consent, describe_consent
from retinue.team.definition import parse_definition
from retinue.team.files import TeamFile
from retinue.team.lock import TeamLock
from retinue.team.package import Team, pack_team, read_config, team_repository
from tests.team.conftest import WriteTeam

DEFINITION = """
name = "words"
version = "1.0.0"
[[agents]]
target = "agents/word/agent.py"
env = { MODE = "fast", KEY = "${KEY}" }
[imports.files]
npm = "server@1.2.3"
[imports.pets]
openapi = "documents/pets.json"
[llm.m]
model = "m-1"
env = { REGION = "eu" }
[secrets]
KEY = "a key"
"""
LOCKS = ("agents/word/pylock.toml", "locks/files/package.json", "locks/files/package-lock.json")


def a_config(change: Callable[[dict[str, Any]], object] = lambda config: None) -> bytes:
    """The config of a team, as somebody else could write it."""
    files = [
        TeamFile("team.toml", "team", DEFINITION.encode()),
        TeamFile("agents/word/agent.py", "agents", b"agent = 1\n"),
        TeamFile(LOCKS[0], "agents", b""),
        *(TeamFile(path, "imports", b"{}") for path in LOCKS[1:]),
        TeamFile("documents/pets.json", "documents", b"{}"),
    ]
    lock = TeamLock.model_validate(
        {
            "schema": 1,
            "agents": {"agents/word/agent.py": {"name": "word", "lock": LOCKS[0]}},
            "imports": {"files": {"lock": LOCKS[2], "packages": 1}, "pets": {}},
        }
    )
    package = pack_team(parse_definition(DEFINITION.encode()), lock, files)
    config = orjson.loads(package.blobs[package.manifest.config.digest])
    change(config)
    return rfc8785.dumps(config)


def read(content: bytes) -> Team:
    return read_config(content, digest="sha256:" + "0" * 64, where="x")


def refuse(consent: Consent) -> bool:
    return False


@pytest.mark.parametrize("name", ["teams.json", "children.json", "recording.json", "a.b"])
async def test_the_name_of_a_team_has_no_dot_and_one_from_elsewhere_changes_nothing(
    name: str, teams: TeamCommands, state: State
) -> None:
    with pytest.raises(InvalidSettingError, match=r"team\.toml: name") as caught:
        parse_definition(DEFINITION.replace('"words"', f'"{name}"', 1).encode())
    assert "such as editorial" in caught.value.remedy
    definition = parse_definition(DEFINITION.encode())
    files = [TeamFile("team.toml", "team", b""), *(TeamFile(path, "imports", b"") for path in LOCKS[1:])]
    lock = read(a_config()).lock
    package = pack_team(definition.model_copy(update={"name": name}), lock, files)
    await LayoutRegistry(state.registry).push_package(team_repository(name), "1.0.0", package)
    with pytest.raises(TeamRefusedError, match="a name has lower-case letters"):
        await teams.up(package.digest, UpOptions(is_agreed=True), refuse, print)
    assert not (TeamStore(state).root / name).exists()
    assert TeamStore(state).read_rows() == {}


async def test_an_unsigned_team_leaves_nothing_in_the_state(
    teams: TeamCommands, write_team: WriteTeam, state: State
) -> None:
    packed = await teams.pack(write_team(), registry=None, output=None)
    (state.keys / "card-signing.json").unlink()
    with pytest.raises(TeamRefusedError, match="key"):
        await teams.up(packed.team.digest, UpOptions(is_agreed=True), refuse, print)
    assert not (TeamStore(state).root / "words").exists()


async def test_an_installed_team_with_a_former_name_stays_readable(state: State) -> None:
    content = a_config(lambda config: config["team"].update(name="my.team"))
    store, digest = TeamStore(state), "sha256:" + "1" * 64
    store.install("my.team", digest, {CONFIG: content})
    assert read_installed(store, "my.team", digest).name == "my.team"


REFUSED = (
    *("RETINUE_HOME", "RETINUE_AUTH__ANONYMOUS", "retinue_hub", "PYTHONPATH", "PYTHONSTARTUP", "LD_PRELOAD"),
    *("DYLD_INSERT_LIBRARIES", "NODE_OPTIONS", "PATH", "HOME", "HTTPS_PROXY", "https_proxy", "No_Proxy"),
    *(
        "all_proxy",
        "SSL_CERT_FILE",
        "NODE_EXTRA_CA_CERTS",
        "BASH_ENV",
        "npm_config_registry",
        "PIP_INDEX_URL",
    ),
)


@pytest.mark.parametrize("name", REFUSED)
def test_a_variable_that_belongs_to_the_machine_is_refused_in_every_env(name: str) -> None:
    for place in ("agents.0.env", "imports.files.env", "llm.m"):
        config = orjson.loads(a_config())
        table = config["team"]
        for key in place.removesuffix(".env").split("."):
            table = table[int(key) if key.isdecimal() else key]
        table["env"] = {name: "x"}
        with pytest.raises(TeamRefusedError) as caught:
            read(rfc8785.dumps(config))
        assert caught.value.reason == "not_a_team"
        assert place in caught.value.message
        assert f"{name} belongs to the machine" in caught.value.message
    text = DEFINITION.replace('MODE = "fast"', f'{name} = "x"')
    with pytest.raises(InvalidSettingError) as refused:
        parse_definition(text.encode())
    assert (refused.value.field, "another name" in refused.value.remedy) == ("team.toml: agents.0.env", True)


def test_the_variable_of_a_key_is_not_one_of_the_machine() -> None:
    text = DEFINITION.replace('model = "m-1"', 'model = "m-1"\napi_key_env = "RETINUE_TOKEN"')
    with pytest.raises(InvalidSettingError, match="RETINUE_TOKEN belongs to the machine"):
        parse_definition(text.replace("[secrets]", '[secrets]\nRETINUE_TOKEN = "x"').encode())


@pytest.mark.parametrize("name", ["A=B", "", "A B", "A\0"])
def test_env_names_variables_only(name: str) -> None:
    with pytest.raises(TeamRefusedError, match="is no name of a variable"):
        read(a_config(lambda config: config["team"]["agents"][0].update(env={name: "x"})))
    with pytest.raises(TeamRefusedError, match="has a zero byte"):
        read(a_config(lambda config: config["team"]["agents"][0].update(env={"A": "a\0"})))


def test_the_consent_shows_the_variables_of_agents_and_models_with_their_values() -> None:
    consent = describe_consent(read(a_config()), "me")
    assert consent.env == ('word KEY="${KEY}"', 'word MODE="fast"', 'm REGION="eu"')
    assert '  env         word KEY="${KEY}"' in consent.render()
    assert consent.as_json()["env"] == list(consent.env)


def test_the_consent_names_each_agent_that_may_call_everything() -> None:
    assert "word calls everything" in describe_consent(read(a_config()), "me").access
    limited = a_config(lambda config: config["team"].update(access={"word": {"send": ["files/*"]}}))
    assert describe_consent(read(limited), "me").access == ("word calls files/*",)
    called = a_config(lambda config: config["team"].update(access={"word": {"receive": ["x"]}}))
    assert describe_consent(read(called), "me").access == ("word is called by x", "word calls everything")


async def test_access_of_a_name_that_is_no_agent_of_the_team_is_refused(
    teams: TeamCommands, write_team: WriteTeam
) -> None:
    folder = write_team(more="[access.wrod-agent]\nsend = []\n", agent="word-agent")
    with pytest.raises(InvalidSettingError, match=r"access\.wrod-agent") as caught:
        await teams.pack(folder, registry=None, output=None)
    assert "did you mean word-agent" in caught.value.remedy
    with pytest.raises(TeamRefusedError, match=r"access\.wrod"):
        read(a_config(lambda config: config["team"].update(access={"wrod": {"send": []}})))
    assert read(a_config(lambda config: config["team"].update(access={"m": {"receive": ["word"]}})))


@pytest.mark.parametrize("text", [">=0.1", ">= 0.1.0", "^0.1.0", "0.1.x", ">=0.1.0,", "", "~=0.1.0"])
def test_requires_has_the_form_that_up_compares(text: str) -> None:
    with pytest.raises(InvalidSettingError) as caught:
        parse_definition(f'requires = "{text}"\n{DEFINITION}'.encode())
    assert (caught.value.field, ">=0.1.0" in caught.value.remedy) == ("team.toml: requires", True)
    for accepted in (">=0.1.0", ">=0.1.0, <2.0.0", "==0.1.0-rc.1", "0.1.0"):
        assert parse_definition(f'requires = "{accepted}"\n{DEFINITION}'.encode()).requires == accepted


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda c: c["lock"]["agents"].clear(), "its lock has other agents"),
        (lambda c: c["lock"]["agents"].update({"b/b.py": {"name": "b"}}), "its lock has other agents"),
        (lambda c: c["lock"]["imports"].pop("files"), "its lock has other imports"),
        (lambda c: c["lock"]["imports"].update(more={}), "its lock has other imports"),
        (lambda c: c["lock"]["imports"]["files"].update(lock="/etc/passwd"), "the lock of files"),
        (lambda c: c["lock"]["imports"]["files"].update(lock="locks/files/pylock.toml"), "the lock of files"),
        (lambda c: c["lock"]["imports"]["files"].pop("lock"), "the lock of files"),
        (lambda c: c["lock"]["imports"]["pets"].update(lock=LOCKS[2]), "the lock of pets"),
        (lambda c: c["lock"]["agents"]["agents/word/agent.py"].update(lock="../x"), "the lock of word"),
        (lambda c: c["lock"]["agents"]["agents/word/agent.py"].update(lock="team.toml"), "the lock of word"),
        (
            lambda c: c.update(files=[row for row in c["files"] if row["path"] != LOCKS[0]]),
            "no agents/word/p",
        ),
        (lambda c: c.update(files=[row for row in c["files"] if row["path"] != LOCKS[1]]), "package.json"),
        (lambda c: c.update(files=[row for row in c["files"] if "pets" not in row["path"]]), "pets.json"),
        (lambda c: c.update(files=[row for row in c["files"] if "agent.py" not in row["path"]]), "agent.py"),
        (lambda c: [row.update(layer="team") for row in c["files"]], "no agents/word/agent.py"),
    ],
)
def test_a_lock_that_no_pack_writes_is_refused(
    change: Callable[[dict[str, Any]], object], problem: str
) -> None:
    assert read(a_config()).name == "words"
    with pytest.raises(TeamRefusedError, match=problem) as caught:
        read(a_config(change))
    assert caught.value.reason == "not_a_team"


@pytest.mark.parametrize("depth", [150, 300, 990, 1010, 100_000])
def test_a_config_that_is_nested_deep_is_refused_and_ends_no_program(depth: int) -> None:
    schema = b'{"a":' * depth + b"1" + b"}" * depth
    skill = b'"skills":[{"description":"","id":"x","input_schema":' + schema + b"}]"
    content = a_config().replace(b'"name":"word","skills":[]', b'"name":"word",' + skill)
    assert schema in content
    if depth > 200:
        with pytest.raises(TeamRefusedError, match=r"its schema|cannot be read|nested"):
            read(content)
    else:
        assert replace(read(content), digest="x").name == "words"
