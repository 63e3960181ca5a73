"""The environment of a hub's agents and models: what they need, and no key of others."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import InvalidSettingError
from retinue.mcp.codec.messages import Message
from retinue.mcp.stdio.server_program import ServerProgram
from retinue.parts.part import Check
from retinue.processes.environment import with_home
from retinue.runtime.commands.doctor import examine
from retinue.runtime.models import find_models
from retinue.runtime.parts.children import child_specs, model_children
from retinue.settings import Settings
from retinue.settings_tables import AgentTable, LlmTable
from retinue.storage.state import State

URL = "http://127.0.0.1:9000"

HUB = {
    "PATH": "/usr/bin",
    "HOME": "/home/me",
    "LANG": "C.UTF-8",
    "TZ": "Europe/Berlin",
    "HTTPS_PROXY": "http://proxy:3128",
    "SSL_CERT_FILE": "/etc/ca.pem",
    "DOCKER_CONFIG": "/home/me/.docker",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
    "PYTHONPATH": "/home/me/code",
    "RETINUE_LOGS__FILES": "2",
    "RETINUE_TIMEOUTS__PROBE_S": "3",
    "RETINUE_HOME": "/elsewhere",
}
KEYS = {
    "ANTHROPIC_API_KEY": "sk-a",
    "GEMINI_API_KEY": "sk-g",
    "GITHUB_TOKEN": "gh",
    "AWS_SECRET_ACCESS_KEY": "aws",
    "RETINUE_DATABASE": "postgresql://me:secret@db/retinue",
    "RETINUE_JOIN": "join",
    "RETINUE_TOKEN": "token",
}


def environments(tmp_path: Path, settings: Settings, environ: dict[str, str]) -> dict[str, dict[str, str]]:
    """The environment of each child by its name."""
    state = State(tmp_path / "state")
    models = find_models(settings, environ)
    specs = [
        *child_specs(settings, state, URL, False, environ),
        *model_children(models, settings, state, URL, environ),
    ]
    return {spec.name: dict(spec.environment) for spec in specs}


def test_agents_get_what_they_need_and_no_key(tmp_path: Path) -> None:
    settings = Settings(agents=(AgentTable(target="a.py"),))
    found = environments(tmp_path, settings, HUB | KEYS)
    expected = HUB | {"RETINUE_HOME": str(tmp_path / "state"), "RETINUE_HUB": URL}
    assert found["a.py"] == expected
    assert found["plan-agent"] == expected


def test_a_folder_of_agents_in_markdown_is_one_child(tmp_path: Path) -> None:
    folder = tmp_path / "agents"
    folder.mkdir()
    for name in ("a.md", "b.md", "README.md"):
        (folder / name).write_text("")
    settings = Settings(agents=(AgentTable(target=str(folder)),))
    found = environments(tmp_path, settings, HUB)
    assert str(folder) in found
    assert not [name for name in found if name.endswith(".md")]
    with pytest.raises(InvalidSettingError, match="the folder has 2 agents"):
        environments(tmp_path, Settings(agents=(AgentTable(target=str(folder), port=8001),)), HUB)


def test_a_model_gets_the_variable_of_its_key_and_of_no_other(tmp_path: Path) -> None:
    url = "http://127.0.0.1:1"
    mine = LlmTable(provider="openai", base_url=url, model="m", api_key_env="GITHUB_TOKEN")
    settings = Settings(llm={"mine": mine, "own": LlmTable(command="true", env={"A": "-${GEMINI_API_KEY}-"})})
    found = environments(tmp_path, settings, HUB | KEYS | {"PATH": "/usr/bin:/bin"})
    keys = {name: {key: env[key] for key in {*KEYS, "A"} & {*env}} for name, env in found.items()}
    assert keys["mine"] == {"GITHUB_TOKEN": "gh"}
    assert keys["own"] == {"A": "-sk-g-"}
    for name in {"claude", "gemini"} & {*found}:
        assert len(keys[name]) == 1


def test_an_agent_gets_the_variables_of_its_table(tmp_path: Path) -> None:
    env = {"GITHUB_TOKEN": "${GITHUB_TOKEN}", "MODE": "fast", "PATH": "/opt/bin:$PATH"}
    settings = Settings(agents=(AgentTable(target="a.py", env=env), AgentTable(target="b.py")))
    found = environments(tmp_path, settings, HUB | KEYS)
    assert {**found["a.py"], **found["b.py"]} == found["a.py"] | {"PATH": "/usr/bin"}
    assert (found["a.py"]["GITHUB_TOKEN"], found["a.py"]["MODE"]) == ("gh", "fast")
    assert found["a.py"]["PATH"] == "/opt/bin:/usr/bin"
    assert "GITHUB_TOKEN" not in found["b.py"]


def test_an_agent_may_inherit_everything(tmp_path: Path) -> None:
    settings = Settings(agents=(AgentTable(target="a.py", env="inherit"),))
    found = environments(tmp_path, settings, HUB | KEYS)["a.py"]
    assert found == HUB | KEYS | {"RETINUE_HOME": str(tmp_path / "state"), "RETINUE_HUB": URL}


def test_a_variable_that_the_hub_does_not_have_is_named(tmp_path: Path) -> None:
    settings = Settings(agents=(AgentTable(target="a.py", env={"TOKEN": "${GITHUB_TOKEN}"}),))
    with pytest.raises(InvalidSettingError, match=r"agents: a\.py: env\.TOKEN: the variable GITHUB_TOKEN"):
        environments(tmp_path, settings, HUB)


def make_unwritable_home(tmp_path: Path, kind: str) -> dict[str, str]:
    if kind == "none":
        return {}
    home = tmp_path / "given"
    if kind == "file":
        home.touch()
    return {"HOME": str(home)}


@pytest.mark.parametrize("kind", ["none", "missing", "file"])
async def test_a_program_of_an_import_has_a_home_to_keep_its_cache_in(tmp_path: Path, kind: str) -> None:
    """As npx, which waits without an end where it cannot make ~/.npm."""
    state = State(tmp_path / "state")
    own = with_home({"PATH": os.defpath, **make_unwritable_home(tmp_path, kind)}, state.home)
    assert own["HOME"] == str(state.home)
    server = tmp_path / "server.py"
    server.write_text(
        "import json, pathlib, sys\n"
        "cache = pathlib.Path.home() / '.npm' / '_cacache'\n"
        "cache.mkdir(parents=True)\n"
        "line = json.loads(sys.stdin.readline())\n"
        "result = {'cache': str(cache)}\n"
        "print(json.dumps({'jsonrpc': '2.0', 'id': line['id'], 'result': result}), flush=True)\n"
    )
    program = ServerProgram("one", [sys.executable, str(server)], {}, own=own)
    await program.open()
    try:
        request = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        async with (
            asyncio.timeout(60),
            aclosing(program.exchange(Message("request", "ping", 1, request))) as stream,
        ):
            answer = await anext(stream)
    finally:
        await program.aclose()
    assert answer["result"] == {"cache": str(state.home / ".npm" / "_cacache")}
    assert stat.S_IMODE(state.home.stat().st_mode) == 0o700


def test_a_home_that_can_be_written_stays(tmp_path: Path) -> None:
    own = {"HOME": str(tmp_path)}
    assert with_home(own, tmp_path / "state" / "home") == own
    assert not (tmp_path / "state").exists()


def check(tmp_path: Path, environ: dict[str, str], **tables: Any) -> dict[str, Check]:
    """The doctor's checks by name."""
    checks = asyncio.run(examine(lambda: Settings(**tables), State(tmp_path / "state"), environ))
    return {one.name: one for one in checks}


def test_doctor_names_what_agents_inherited_until_now(tmp_path: Path) -> None:
    found = check(tmp_path, HUB | {"GITHUB_TOKEN": "gh-secret", "AWS_PROFILE": "me", "PWD": "/", "_": "x"})
    row = found["agent environment"]
    assert row.status == "ok"
    assert row.found == "agents no longer inherit from the hub: AWS_PROFILE, GITHUB_TOKEN"
    assert 'env = {NAME = "${NAME}"}' in row.remedy
    assert "gh-secret" not in str(row.as_json())
    assert check(tmp_path, HUB)["agent environment"].remedy == ""


def test_doctor_says_which_agent_inherits_everything(tmp_path: Path) -> None:
    agents = (AgentTable(target="a.py", env="inherit"), AgentTable(target="b.py"))
    found = check(tmp_path, HUB, agents=agents)
    assert found["agent a.py"].status == "warn"
    assert "every variable of the hub" in found["agent a.py"].found
    assert "agent b.py" not in found
