"""``retinue pack --from-config``: what of a ``retinue.toml`` is in the team, and what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.core.errors import InvalidSettingError
from retinue.runtime.commands.teams.source import convert_settings, read_source
from retinue.team.definition import parse_definition
from retinue.team.from_config import convert_config
from tests.team.conftest import WriteTeam

SETTINGS = b"""
database = "postgresql://user:secret@db/retinue"

[auth]
anonymous = false

[signatures]
policy = "warn"

[[agents]]
target = "agents/word/agent.py:words"
host = "0.0.0.0"
env = { WORD_KEY = "${WORD_KEY}", MODE = "plain", ODD = "$ODD" }

[[agents]]
target = "installed.module:agent"

[[agents]]
target = "prompts/editor.md"

[imports]
pin = true

[imports.files]
command = "npx"
args = ["-y", "@modelcontextprotocol/server-filesystem@2026.1.14", "/data"]
env = { TOKEN = "${FILES_TOKEN}" }
strict = true

[imports.fetch]
command = "uvx"
args = ["mcp-server-fetch==2026.10.24"]

[imports.loose]
command = "npx"
args = ["-y", "some-server"]

[imports.pets]
openapi = "https://pets.example/openapi.json"

[imports.search]
url = "https://search.example/mcp"
headers = { Authorization = "Bearer ${SEARCH_KEY}" }

[llm.claude]
provider = "anthropic"
model = "claude-sonnet-5-5"
api_key_env = "ANTHROPIC_API_KEY"

[llm.local]
command = "some-model"

[access.editor]
send = ["files/read_file"]

[access.files]
receive = ["editor"]
"""


def test_settings_become_a_team_and_what_is_left_out_is_told() -> None:
    conversion = convert_config(SETTINGS, "editorial")
    team = parse_definition(conversion.text.encode())
    assert (team.name, team.version) == ("editorial", "0.1.0")
    assert [(agent.target, dict(agent.env)) for agent in team.agents] == [
        ("agents/word/agent.py:words", {"WORD_KEY": "${WORD_KEY}", "MODE": "plain"}),
        ("prompts/editor.md", {}),
    ]
    assert {name: table.package or table.url for name, table in team.imports.items()} == {
        "files": "@modelcontextprotocol/server-filesystem@2026.1.14",
        "fetch": "mcp-server-fetch==2026.10.24",
        "search": "https://search.example/mcp",
    }
    assert team.imports["files"].args == ("/data",)
    assert {*team.secrets} == {"WORD_KEY", "FILES_TOKEN", "SEARCH_KEY", "ANTHROPIC_API_KEY"}
    assert ({*team.llm}, {*team.access}) == ({"claude"}, {"editor"})
    assert {line.partition(":")[0] for line in conversion.left_out} == {
        *("database", "auth", "signatures", "agents[0].host", "agents[0].env.ODD", "agents[1]"),
        *("imports.files.strict", "imports.loose", "imports.pets", "llm.local", "access.files"),
    }
    assert "secret" not in "".join(conversion.left_out) + conversion.text.partition("[secrets]")[0]


def test_a_key_that_the_settings_hold_is_not_copied() -> None:
    settings = b"""
[[agents]]
target = "agents/word/agent.py"
env = { DB_PASSWORD = "hunter2", MODE = "fast", TOKENIZER_PATH = "words" }
[imports.api]
url = "https://api.example/mcp"
headers = { "X-Api-Key" = "hunter2", Accept = "text/plain", Authorization = "Bearer ${TOKEN}" }
[imports.query]
url = "https://api.example/mcp?api_key=hunter2"
[imports.user]
url = "https://me:hunter2@api.example/mcp"
[imports.files]
command = "npx"
args = ["files@1.2.3", "--token", "hunter2"]
"""
    conversion = convert_config(settings, "editorial")
    team = parse_definition(conversion.text.encode())
    assert "hunter2" not in conversion.text + "".join(conversion.left_out)
    assert team.agents[0].env == {
        "DB_PASSWORD": "${DB_PASSWORD}", "MODE": "fast", "TOKENIZER_PATH": "${TOKENIZER_PATH}"
    }  # fmt: skip
    assert team.imports["api"].headers == {
        "X-Api-Key": "${API_X_API_KEY}", "Accept": "text/plain", "Authorization": "Bearer ${TOKEN}"
    }  # fmt: skip
    assert ({*team.imports}, team.imports["files"].args) == ({"api", "files"}, ())
    assert {line.partition(":")[0] for line in conversion.left_out} == {
        *("agents[0].env.DB_PASSWORD", "agents[0].env.TOKENIZER_PATH", "imports.api.headers.X-Api-Key"),
        *("imports.query", "imports.user", "imports.files.args"),
    }


def test_a_url_with_a_password_becomes_a_secret_and_pack_refuses_one_that_is_written() -> None:
    settings = b"""
[[agents]]
target = "agents/word/agent.py"
env = { STORE = "postgres://me:hunter2@db/words", PLAIN = "postgres://me@db/words", OWN = "x://me:${PW}@db" }
[imports.files]
command = "npx"
args = ["files@1.2.3"]
env = { STORE = "https://hunter2@store.example", HOOK = "https://hook.example/?token=hunter2&page=2" }
[imports.more]
command = "npx"
args = ["files@1.2.3", "redis://:hunter2@cache"]
server = "https://me:hunter2@api.example"
"""
    conversion = convert_config(settings, "editorial")
    team = parse_definition(conversion.text.encode())
    assert "hunter2" not in conversion.text + "".join(conversion.left_out)
    assert team.agents[0].env == {
        "STORE": "${STORE}", "PLAIN": "postgres://me@db/words", "OWN": "x://me:${PW}@db"
    }  # fmt: skip
    assert team.imports["files"].env == {"STORE": "${FILES_STORE}", "HOOK": "${HOOK}"}
    assert {*team.secrets} == {"STORE", "FILES_STORE", "HOOK", "PW"}
    assert (team.imports["more"].args, team.imports["more"].server) == ((), None)


@pytest.mark.parametrize(
    "more",
    [
        'env = { STORE = "postgres://me:hunter2@db/words" }\n',
        '[imports.api]\nurl = "https://api.example/mcp?api_key=hunter2"\n',
        '[llm.own]\nmodel = "m-1"\nbase_url = "https://me:hunter2@models.example/v1"\n',
    ],
)
def test_pack_refuses_a_url_with_a_password(write_team: WriteTeam, more: str) -> None:
    source = read_source(write_team(more=more))
    with pytest.raises(InvalidSettingError, match="a URL with a password") as refusal:
        source.check_secrets({})
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (b"[auth]\nanonymous = true\n", "nothing of it can be in a team"),
        (b"[imports.x]\ncommand = 'sh'\n", "no package of npm or PyPI"),
        (b"[[agents]\n", "it is not TOML"),
    ],
)
def test_settings_of_which_no_team_can_be_made_are_refused(settings: bytes, problem: str) -> None:
    with pytest.raises(InvalidSettingError, match=problem):
        convert_config(settings, "x")


def test_a_team_toml_that_exists_stays(tmp_path: Path) -> None:
    folder = tmp_path / "1 Desk"
    folder.mkdir()
    (folder / "retinue.toml").write_bytes(SETTINGS)
    convert_settings(folder)
    assert parse_definition((folder / "team.toml").read_bytes()).name == "team-1-desk"
    with pytest.raises(InvalidSettingError, match="exists"):
        convert_settings(folder)


def test_variables_of_the_machine_are_left_out() -> None:
    text = '[[agents]]\ntarget = "agents/word/agent.py"\nenv = { PYTHONPATH = "/x", MODE = "fast" }\n'
    conversion = convert_config(text.encode(), "words")
    assert dict(parse_definition(conversion.text.encode()).agents[0].env) == {"MODE": "fast"}
    assert "agents[0].env.PYTHONPATH: PYTHONPATH belongs to the machine" in conversion.left_out[0]
