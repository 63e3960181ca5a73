"""Commands at hubs of other machines: ``--hub``, ``RETINUE_HUB``, ``retinue context`` and the tokens."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from retinue.storage.state import State
from tests.cli.conftest import Retinue
from tests.processes.inside import inside
from tests.processes.recorder import recorder
from tests.processes.running import write_agent

DEAD = "http://127.0.0.1:1"
CLOSED = {"RETINUE_AUTH__ANONYMOUS": "false"}


@dataclass(frozen=True)
class TeamHub:
    """A hub of another state that wants a token, with one agent; ``token`` is good there."""

    url: str
    token: str
    home: Path


@pytest.fixture(autouse=True)
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "retinue" / "contexts.json"


@pytest.fixture
def team(tmp_path: Path, retinue: Retinue, monkeypatch: pytest.MonkeyPatch) -> Iterator[TeamHub]:
    home = tmp_path / "team"
    environment = {**CLOSED, "RETINUE_HOME": str(home)}
    agent = write_agent(tmp_path, "team-agent", "1.0.0", "who", "team")
    with inside("hub", "--bare", "--port", "0", cwd=tmp_path, environment=environment) as hub:
        url = hub.url_in("hub at")
        with inside("serve", str(agent), cwd=tmp_path, environment=environment) as served:
            served.wait_for("published")
            with monkeypatch.context() as patch:
                patch.setenv("RETINUE_HOME", str(home))
                token = retinue("token", "new", "--scope", "mesh").stdout.strip()
            yield TeamHub(url, token, home)


def names_of(retinue: Retinue, *arguments: str) -> list[str]:
    listed = retinue(*arguments)
    assert listed.exit_code == 0, listed.output
    return [row["name"] for row in orjson.loads(listed.stdout)["agents"]]


def test_a_command_reaches_a_hub_by_option_variable_and_context_in_this_order(
    retinue: Retinue, team: TeamHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert names_of(retinue, "agents", "--json") == []
    monkeypatch.setenv("RETINUE_TOKEN", team.token)
    for arguments in (("agents", "--json", "--hub", team.url), ("--hub", team.url, "agents", "--json")):
        assert names_of(retinue, *arguments) == ["team-agent"]
    monkeypatch.setenv("RETINUE_HUB", team.url)
    assert names_of(retinue, "agents", "--json") == ["team-agent"]
    assert retinue("context", "add", "dead", DEAD).exit_code == 0
    assert retinue("context", "use", "dead").exit_code == 0
    assert names_of(retinue, "agents", "--json") == ["team-agent"]
    assert retinue("agents", "--hub", DEAD).exit_code == 7
    monkeypatch.delenv("RETINUE_HUB")
    refused = retinue("agents")
    assert refused.exit_code == 7
    assert "retinue context use local" in refused.stderr
    assert names_of(retinue, "agents", "--json", "--hub", team.url) == ["team-agent"]
    assert retinue("context", "use", "local").exit_code == 0
    assert names_of(retinue, "agents", "--json") == []


def test_a_context_brings_its_token_and_every_command_that_calls_a_hub(
    retinue: Retinue, team: TeamHub, configuration: Path
) -> None:
    added = retinue("context", "add", "team", team.url, "--token-stdin", stdin=f"{team.token}\n")
    assert added.exit_code == 0, added.output
    assert stat.S_IMODE(configuration.stat().st_mode) == 0o600
    assert retinue("context", "use", "team").exit_code == 0
    assert retinue("call", "who").stdout == '"team"\n'
    assert "team-agent" in retinue("show", "team-agent").stdout
    assert "who" in retinue("find", "who").stdout
    assert retinue("runs").exit_code == 0
    assert "plan" in retinue("workflows").stdout
    flow = Path("flow.yaml")
    flow.write_text("name: asks\nsteps:\n  - {id: one, skill: who}\n")
    assert retinue("workflows", "check", str(flow)).stdout == "flow.yaml: ok\n"
    assert retinue("run", str(flow)).stdout == '"team"\n'
    assert retinue("cache", "clear").exit_code == 0
    assert retinue("dashboard", "--no-browser").stdout.startswith(f"{team.url}/ui/")
    # the URL of a context has its token, too
    assert retinue("context", "use", "local").exit_code == 0
    assert names_of(retinue, "agents", "--json", "--hub", team.url) == ["team-agent"]
    assert names_of(retinue, "agents", "--json", "--hub", "team") == ["team-agent"]


def test_a_hub_that_wants_a_token_is_named_with_the_remedy(
    retinue: Retinue, team: TeamHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    for token, reason in ((None, "wants a token"), ("rtn_wrong", "rejects the token")):
        if token is not None:
            monkeypatch.setenv("RETINUE_TOKEN", token)
        refused = retinue("agents", "--hub", team.url)
        assert refused.exit_code == 4
        assert refused.stderr.startswith(f"error: the hub at {team.url} {reason} — set RETINUE_TOKEN")
        assert refused.stderr.count("\n") == 1


def test_the_state_token_goes_to_no_other_hub_of_this_machine(
    retinue: Retinue, retinue_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = State(retinue_home).local_token().encode()
    monkeypatch.setenv("RETINUE_TOKEN", "")
    with recorder() as stranger:
        retinue("agents", "--hub", stranger.url)
        retinue("call", "x", "--progress", "--hub", stranger.url)
        retinue("dashboard", "--no-browser", "--hub", stranger.url)
        retinue("context", "add", "other", stranger.url)
        retinue("context", "use", "other")
        retinue("find", "x")
        assert stranger.connections > 1
        assert token not in stranger.received
        assert b"authorization" not in stranger.received.lower()
        # its own one gets it
        State(retinue_home).write_hub(stranger.url)
        retinue("agents", "--hub", stranger.url)
        assert token in stranger.received


def test_contexts_are_listed_without_tokens_and_removed(retinue: Retinue, configuration: Path) -> None:
    retinue("context", "add", "team", "https://hub.example/", "--token-stdin", stdin="secret-token")
    retinue("context", "use", "team")
    listed = retinue("context", "list", "--json")
    assert orjson.loads(listed.stdout)["contexts"] == [
        {"name": "local", "url": None, "token": True, "in_use": False},
        {"name": "team", "url": "https://hub.example", "token": True, "in_use": True},
    ]
    assert "secret-token" not in listed.stdout + retinue("context", "list").stdout
    assert "secret-token" in configuration.read_text()
    removed = retinue("context", "remove", "team")
    assert removed.stdout == "removed team\n"
    assert "it was in use" in removed.stderr
    assert "secret-token" not in configuration.read_text()
    assert len(orjson.loads(retinue("context", "list", "--json").stdout)["contexts"]) == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("add", "local", DEAD), "stands for the hub of the state folder"),
        (("add", "a b", DEAD), "cannot be the name of a context"),
        (("add", "team", "hub.example"), "is not the URL of a hub"),
        (("add", "team", "http://me:secret-word@hub.example"), "leave them out"),
        (("add", "team", "http://hub.example/mcp"), "write http://hub.example for the hub itself"),
        (("add", "team", "http://hub.example/base/execute/"), "write http://hub.example/base for"),
        (("use", "team"), "no context is named team"),
        (("remove", "team"), "no context is named team"),
        (("add", "team", DEAD, "--token-stdin"), "standard input holds no token"),
    ],
)
def test_what_cannot_be_a_context_is_refused(
    retinue: Retinue, arguments: tuple[str, ...], problem: str
) -> None:
    refused = retinue("context", *arguments)
    assert refused.exit_code == 2
    assert problem in refused.stderr
    assert "secret-word" not in refused.stderr


def test_a_context_is_not_replaced_and_a_near_name_is_suggested(retinue: Retinue) -> None:
    retinue("context", "add", "team", DEAD)
    assert "remove it first: retinue context remove team" in retinue("context", "add", "team", DEAD).stderr
    assert "did you mean team?" in retinue("--hub", "taem", "agents").stderr


def test_a_file_of_contexts_that_others_may_read_or_that_is_damaged_is_not_used(
    retinue: Retinue, configuration: Path
) -> None:
    retinue("context", "add", "team", DEAD)
    configuration.chmod(0o644)
    refused = retinue("agents")
    assert refused.exit_code == 8
    assert f"chmod 600 {configuration}" in refused.stderr
    configuration.chmod(0o600)
    configuration.write_text("[]")
    assert "it holds no contexts" in retinue("agents").stderr


@pytest.mark.parametrize(
    "arguments", [("--hub", DEAD, "logs"), ("logs", "--hub", DEAD), ("logs", f"--hub={DEAD}")]
)
def test_a_command_of_this_machine_says_so(retinue: Retinue, arguments: tuple[str, ...]) -> None:
    refused = retinue(*arguments)
    assert refused.exit_code == 2
    assert refused.stderr == (
        "error: --hub: logs works on this machine only — run it on the machine of that hub\n"
    )


def test_a_context_in_use_is_said_by_commands_of_this_machine(retinue: Retinue) -> None:
    retinue("context", "add", "team", DEAD)
    retinue("context", "use", "team")
    assert "the context team is in use; token is about this machine" in retinue("token", "list").stderr
    assert "context" not in retinue("completion", "bash").stderr


def test_the_folder_is_that_of_the_user(
    retinue: Retinue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    retinue("context", "add", "team", DEAD)
    assert (tmp_path / "me" / ".config" / "retinue" / "contexts.json").exists()
    assert not os.environ.get("XDG_CONFIG_HOME")
