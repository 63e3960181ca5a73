"""``retinue connect``: what is written for each client, what is said, and how it goes away again."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import orjson
import pytest

from retinue.mcp.client_configs.clients import CLIENTS
from retinue.runtime.commands import connect as connecting
from retinue.runtime.commands.connect import find_config
from retinue.storage.state import State
from tests.cli.conftest import Retinue
from tests.mcp.client_configs.samples import BY_CLIENT

HUB = "http://127.0.0.1:9000/mcp"
VARIABLES = (
    "XDG_CONFIG_HOME",
    "APPDATA",
    "LOCALAPPDATA",
    "CODEX_HOME",
    "CLAUDE_CONFIG_DIR",
    "GEMINI_CLI_HOME",
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder of a person who has none of the clients."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return home


@pytest.fixture
def token(retinue_home: Path) -> str:
    return State(retinue_home).local_token()


def _write(name: str, text: str) -> Path:
    file = find_config(CLIENTS[name])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode())
    return file


@pytest.mark.parametrize("name", CLIENTS)
def test_connected_once_connected_twice_and_removed_to_the_byte(
    name: str, retinue: Retinue, token: str, retinue_home: Path
) -> None:
    client, file = CLIENTS[name], _write(name, BY_CLIENT[name])
    first = retinue("connect", name)
    assert first.exit_code == 0, first.output
    assert token not in first.output
    entry = client.read_entry(file.read_bytes().decode(), "retinue", "f")
    if client.url_key is None:
        assert entry["env"] == {"RETINUE_HOME": str(retinue_home)}
        assert Path(entry["command"]).is_absolute()
        assert entry["args"][-1] == "mcp"
        assert "retinue hub" not in first.stdout
    else:
        assert entry == client.render_http(HUB, token)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert "start the hub: retinue hub\n" in first.stdout
    assert f"then: {client.next_step}" in first.stdout
    (backup,) = file.parent.glob("*.bak")
    assert str(backup) in first.stderr
    assert backup.read_bytes().decode() == BY_CLIENT[name]
    written = file.read_bytes()
    again = retinue("connect", name)
    assert "already" in again.stdout
    assert "nothing was changed" in again.stdout
    assert file.read_bytes() == written
    removed = retinue("connect", name, "--remove")
    assert f"removed 'retinue' from {client.title}" in removed.stdout
    assert file.read_bytes().decode() == BY_CLIENT[name]
    gone = retinue("connect", name, "--remove")
    assert (gone.exit_code, "nothing was changed" in gone.stdout) == (0, True)
    assert list(file.parent.glob("*.bak")) == []


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_without_a_configuration_gets_one_and_loses_it_again(name: str, retinue: Retinue) -> None:
    client, file = CLIENTS[name], find_config(CLIENTS[name])
    made = retinue("connect", name, "--stdio")
    assert made.exit_code == 0
    assert f"{client.title} was not found on this machine" in made.stderr
    assert client.read_entry(file.read_text(), "retinue", "f") is not None
    retinue("connect", name, "--remove")
    assert not file.exists()


@pytest.mark.parametrize("name", CLIENTS)
def test_a_program_that_a_client_starts_needs_no_token(name: str, retinue: Retinue, token: str) -> None:
    assert retinue("connect", name, "--stdio").exit_code == 0
    assert token not in find_config(CLIENTS[name]).read_text()


def test_what_came_after_the_entry_stays_when_it_is_removed(retinue: Retinue) -> None:
    file = _write("gemini", BY_CLIENT["gemini"])
    retinue("connect", "gemini")
    file.write_text(file.read_text().replace("Dracula", "Ayu"))
    removed = retinue("connect", "gemini", "--remove")
    assert orjson.loads(file.read_bytes()) == {
        "theme": "Ayu",
        "selectedAuthType": "gemini-api-key",
        "mcpServers": {},
    }
    assert "backup: " not in removed.stderr


@pytest.mark.parametrize("name", CLIENTS)
def test_a_configuration_has_one_private_backup_which_goes_with_the_entry(
    name: str, retinue: Retinue, token: str
) -> None:
    client, file = CLIENTS[name], _write(name, BY_CLIENT[name])
    own = file.with_name(f"{file.name}.bak")
    own.write_text("of the person")
    assert retinue("connect", name, "--stdio").exit_code == 0
    (first,) = _backups(file)
    assert retinue("connect", name).exit_code == 0
    assert retinue("connect", name, "--name", "second").exit_code == 0
    assert _backups(file) == [first], "it differs by entries of the hub only"
    entry = client.render_stdio("other-server", [], {})
    file.write_bytes(client.write_entry(file.read_bytes().decode(), "other", entry, "f").encode())
    assert retinue("connect", name, "--name", "third").exit_code == 0
    (second,) = _backups(file)
    assert second != first
    assert stat.S_IMODE(second.stat().st_mode) == 0o600
    for entry_name in ("second", "third"):
        assert retinue("connect", name, "--remove", "--name", entry_name).exit_code == 0
        assert _backups(file) == [second], "an entry of the hub is left"
    assert retinue("connect", name, "--remove").exit_code == 0
    assert _backups(file) == []
    assert token not in file.read_bytes().decode()
    assert own.read_text() == "of the person"
    assert "other" in client.list_entries(file.read_bytes().decode(), "f")


def _backups(file: Path) -> list[Path]:
    """The backups of Retinue, whose names hold the time."""
    return [backup for backup in file.parent.glob("*.bak") if backup.name != f"{file.name}.bak"]


def test_entries_that_were_changed_come_away_to_the_byte(retinue: Retinue) -> None:
    file = _write("zed", BY_CLIENT["zed"])
    retinue("connect", "zed", "--stdio")
    retinue("connect", "zed")
    retinue("connect", "zed", "--remove")
    assert file.read_bytes().decode() == BY_CLIENT["zed"]


def test_an_empty_file_is_empty_again_after_removing(retinue: Retinue) -> None:
    file = _write("cursor", "")
    retinue("connect", "cursor")
    assert "retinue" in orjson.loads(file.read_bytes())["mcpServers"]
    retinue("connect", "cursor", "--remove")
    assert file.read_bytes() == b""


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "zed",
            '{\n  "a": 1\n  "b": 2\n}',
            "no JSON at line 3, column 3: a comma or } is missing before '\"'",
        ),
        ("codex", 'model = "x\n', "no TOML at line 1, column 11: "),
        ("cursor", '{"mcpServers": []}', "mcpServers is no object"),
        ("cursor", "[]", "the document is no object"),
    ],
)
def test_a_broken_configuration_is_refused_and_not_touched(
    name: str, text: str, said: str, retinue: Retinue
) -> None:
    file = _write(name, text)
    for option in ("--stdio", "--remove"):
        refused = retinue("connect", name, option)
        if option == "--remove" and "no object" in said:
            continue
        assert refused.exit_code == 2
        assert refused.stderr.startswith(f"error: {file}: ")
        assert said in refused.stderr
        assert refused.stderr.count("\n") == 1
    assert file.read_text() == text
    assert list(file.parent.glob("*.bak")) == []
    status = {row["client"]: row["status"] for row in _list(retinue)}[name]
    assert status == ("found" if "no object" in said else "broken")


def _list(retinue: Retinue) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = orjson.loads(retinue("connect", "--list", "--json").stdout)["clients"]
    return rows


def test_the_list_shows_what_is_there(retinue: Retinue, home: Path, tmp_path: Path) -> None:
    (home / ".cursor").mkdir()
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "gemini"
    program.touch(mode=0o755)
    retinue("connect", "zed", "--stdio")
    found = {row["client"]: row["status"] for row in _list(retinue)}
    there = {"cursor": "found", "gemini": "found", "zed": "connected"}
    assert found == dict.fromkeys(CLIENTS, "") | there
    assert "Claude Desktop" in retinue("connect", "--list").stdout


def test_print_shows_all_and_writes_nothing(retinue: Retinue, home: Path, token: str) -> None:
    shown = retinue("connect", "claude", "--print")
    assert orjson.loads(shown.stdout)["mcpServers"]["retinue"] == {
        "type": "http",
        "url": HUB,
        "headers": {"Authorization": f"Bearer {token}"},
    }
    assert str(home / ".claude.json") in shown.stderr
    assert "warning: the entry contains the token" in shown.stderr
    assert "[mcp_servers.retinue]\n" in retinue("connect", "codex", "--print").stdout
    assert "warning" not in retinue("connect", "codex", "--print", "--stdio").stderr
    assert list(home.iterdir()) == []


def test_the_hub_that_runs_counts_and_then_its_settings(
    retinue: Retinue, retinue_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def url(*options: str) -> str:
        shown: str = orjson.loads(retinue("connect", "cursor", "--print", *options).stdout)["mcpServers"][
            "retinue"
        ]["url"]
        return shown

    monkeypatch.setenv("RETINUE_HUB__PORT", "9100")
    monkeypatch.setenv("RETINUE_HUB__HOST", "0.0.0.0")
    assert url() == "http://127.0.0.1:9100/mcp"
    monkeypatch.setenv("RETINUE_HUB__HOST", "::")
    assert url() == "http://[::1]:9100/mcp"
    State(retinue_home).write_hub("http://127.0.0.1:9555")
    assert url() == "http://127.0.0.1:9555/mcp"
    assert "start the hub" not in retinue("connect", "cursor").stdout
    assert url("--url", "https://hub.example.org") == "https://hub.example.org/mcp"
    assert url("--url", "https://hub.example.org/team/mcp") == "https://hub.example.org/team/mcp"


def test_a_hub_on_any_port_has_no_url_before_it_runs(
    retinue: Retinue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_HUB__PORT", "0")
    refused = retinue("connect", "cursor")
    assert refused.exit_code == 2
    assert "start the hub first, set a port, or use --stdio" in refused.stderr
    assert retinue("connect", "cursor", "--stdio").exit_code == 0


def test_the_token_goes_to_the_hub_of_this_state_alone(retinue: Retinue, home: Path, token: str) -> None:
    elsewhere = retinue("connect", "cursor", "--url", "http://hub.example.org:9000")
    assert "no token was written" in elsewhere.stderr
    assert token not in (home / ".cursor" / "mcp.json").read_text()
    retinue("connect", "cursor", "--url", "http://127.0.0.1:9000")
    assert token in (home / ".cursor" / "mcp.json").read_text()


@pytest.mark.parametrize("name", ["cursor", "codex", "gemini"])
def test_a_token_that_a_person_wrote_stays_as_long_as_the_url_does(name: str, retinue: Retinue) -> None:
    client, file = CLIENTS[name], find_config(CLIENTS[name])
    url = "http://hub.example.org:9000/mcp"
    retinue("connect", name, "--url", url)
    entry = client.render_http(url, "rtn_given")
    file.write_text(client.write_entry(file.read_text(), "retinue", entry, "f"))
    again = retinue("connect", name, "--url", url)
    assert "nothing was changed" in again.stdout
    assert "no token" not in again.stderr
    assert "start the hub" not in again.stdout
    assert client.read_entry(file.read_text(), "retinue", "f") == entry
    assert "no token was written" in retinue("connect", name, "--url", "http://other.example.org").stderr
    assert "rtn_given" not in file.read_text()


def test_the_token_of_this_state_does_not_stay_where_another_hub_answers(
    retinue: Retinue, home: Path, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    retinue("connect", "cursor", "--url", HUB)
    file = home / ".cursor" / "mcp.json"
    assert token in file.read_text()
    monkeypatch.setenv("RETINUE_HUB__PORT", "9100")
    assert "no token was written" in retinue("connect", "cursor", "--url", HUB).stderr
    assert token not in file.read_text()


@pytest.mark.parametrize("url", ["hub", "ftp://x", "http://", "http://x y", "http://[", "http://x:99999"])
def test_a_url_that_is_none_is_refused(url: str, retinue: Retinue, home: Path) -> None:
    refused = retinue("connect", "cursor", "--url", url)
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: --url: ")
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("name", ["", "a b", "é", "a.b", "a" * 65, 'x"'])
def test_a_name_that_some_client_would_not_take_is_refused(name: str, retinue: Retinue) -> None:
    assert retinue("connect", "zed", "--name", name).exit_code == 2


def test_several_hubs_have_several_names(retinue: Retinue) -> None:
    retinue("connect", "vscode", "--name", "work")
    retinue("connect", "vscode", "--name", "home")
    file = find_config(CLIENTS["vscode"])
    assert list(orjson.loads(file.read_bytes())["servers"]) == ["work", "home"]
    retinue("connect", "vscode", "--name", "work", "--remove")
    assert list(orjson.loads(file.read_bytes())["servers"]) == ["home"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "retinue connect --list"),
        (("emacs",), "'emacs' is not one of"),
        (("claude-desktop", "--url", "http://x"), "retinue mcp finds the hub itself"),
        (("zed", "--json"), "--json requires --list"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...], said: str, retinue: Retinue) -> None:
    refused = retinue("connect", *arguments)
    assert refused.exit_code == 2
    assert said in refused.stderr


def test_the_program_is_found_by_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "env" / "python"
    monkeypatch.setattr(sys, "executable", str(python))
    assert connecting.find_program({"PATH": ""}) == [str(python), "-m", "retinue"]
    (tmp_path / "bin").mkdir()
    elsewhere = tmp_path / "bin" / "retinue"
    elsewhere.touch(mode=0o755)
    assert connecting.find_program({"PATH": str(tmp_path / "bin")}) == [str(elsewhere)]
    python.parent.mkdir()
    beside = python.parent / "retinue"
    beside.touch(mode=0o755)
    assert connecting.find_program({"PATH": str(tmp_path / "bin")}) == [str(beside)]
