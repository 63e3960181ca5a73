"""``retinue connect --replace`` beside a hub: servers leave their client only when they run in the mesh."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from retinue.mcp.client_configs.clients import CLIENTS, Client, Places
from retinue.mcp.client_configs.config_files import find_file
from retinue.mcp.client_configs.jsonc import set_value
from retinue.mcp.client_configs.toml import set_table
from retinue.storage.state import State
from tests.mcp.client_configs.samples import BY_CLIENT
from tests.processes.commands import run_command
from tests.processes.inside import inside
from tests.processes.running import wait_until

ROOT = Path(__file__).resolve().parents[2]
LOUD = {
    "command": sys.executable,
    "args": ["-m", "tests.mcp.upstream.foreign_server", "plain"],
    "cwd": str(ROOT),
}
BROKEN = LOUD | {"args": ["-m", "tests.mcp.upstream.foreign_server", "broken"]}
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def run(home: Path) -> Run:
    """Runs ``retinue`` for a person with this home."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        places = {"HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config")}
        return run_command(*arguments, cwd=ROOT, environment=places)

    return run


@pytest.fixture
def hub(tmp_path: Path, port: int) -> Iterator[None]:
    with inside("hub", "--bare", "--port", str(port), cwd=tmp_path) as hub:
        hub.wait_for("0 agents")
        yield


def _file(home: Path, client: str) -> Path:
    places = Places("linux", home, {"XDG_CONFIG_HOME": str(home / ".config")})
    return find_file(CLIENTS[client].files(places))


def _write(home: Path, client: str, servers: dict[str, Any]) -> Path:
    file = _file(home, client)
    file.parent.mkdir(parents=True, exist_ok=True)
    if client == "codex":
        rows = [
            f"[mcp_servers.{name}]  # mine\n"
            + "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry.items())
            for name, entry in servers.items()
        ]
        file.write_text("# Codex\n" + "\n".join(rows))
    else:
        text = json.dumps({"theme": "dark", CLIENTS[client].container: servers}, indent=3)
        file.write_text(text.replace('"theme"', '// mine\n   "theme"'))
    return file


def _imports(run: Run) -> list[str]:
    return [row["name"] for row in orjson.loads(run("imports", "--json").stdout)["imports"]]


def _agents(run: Run) -> dict[str, str]:
    rows = orjson.loads(run("agents", "--json").stdout)["agents"]
    return {row["name"]: row["status"] for row in rows}


@pytest.mark.usefixtures("hub")
def test_all_seven_clients_share_one_server_in_the_mesh_and_get_it_back_to_the_byte(
    home: Path, run: Run
) -> None:
    files = {
        name: _write(home, name, {"Loud One": LOUD} if name != "codex" else {"loud": LOUD})
        for name in CLIENTS
    }
    before = {name: file.read_bytes() for name, file in files.items()}
    for name, file in files.items():
        done = run("connect", name, "--replace", "--yes")
        assert done.returncode == 0, done.stderr
        assert list(CLIENTS[name].list_entries(file.read_text(), "f")) == ["retinue"]
        assert f"retinue connect {name} --remove" in done.stdout
    assert _imports(run) == ["loud-one"]
    assert orjson.loads(run("call", "shout", '{"text": "hi"}').stdout) == {"result": "HI"}
    for name, file in files.items():
        assert _imports(run) == ["loud-one"], "another client uses it still"
        done = run("connect", name, "--remove")
        assert done.returncode == 0, done.stderr
        assert file.read_bytes() == before[name]
    assert _imports(run) == []


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("name", CLIENTS)
def test_a_configuration_of_a_person_comes_back_to_the_byte_with_servers_that_stayed(
    home: Path, run: Run, name: str
) -> None:
    """Comments, a byte-order mark, line ends of Windows, tabs, no line end at the end of the file."""
    client, file = CLIENTS[name], _file(home, name)
    others = client.list_entries(BY_CLIENT[name], "f")
    path = (client.container, "loud")
    text = (
        set_table(BY_CLIENT[name], path, LOUD, frozenset(), "f")
        if client.format == "toml"
        else set_value(BY_CLIENT[name], path, LOUD, "f")
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode())
    kept = [option for other in others for option in ("--keep", other)]
    done = run("connect", name, "--replace", "--yes", *kept)
    assert done.returncode == 0, done.stderr
    assert list(_entries(file, client)) == [*others, "retinue"]
    done = run("connect", name, "--remove")
    assert done.returncode == 0, done.stderr
    assert file.read_bytes() == text.encode()
    assert _imports(run) == []


def _entries(file: Path, client: Client) -> dict[str, Any]:
    return client.list_entries(file.read_bytes().decode(), "f")


@pytest.mark.usefixtures("hub")
def test_nothing_is_half_done_when_a_server_does_not_start(home: Path, run: Run) -> None:
    file = _write(home, "cursor", {"loud": LOUD, "sad": BROKEN})
    before = file.read_bytes()
    refused = run("connect", "cursor", "--replace", "--yes")
    assert refused.returncode != 0
    assert "nothing was changed, because 'sad' does not run in the mesh" in refused.stderr
    assert "TOKEN is not set" in refused.stderr
    assert "--keep sad" in refused.stderr
    assert file.read_bytes() == before
    assert _imports(run) == []
    wait_until(lambda: _agents(run) == {}, "the agents are gone")
    done = run("connect", "cursor", "--replace", "--yes", "--keep", "sad")
    assert done.returncode == 0, done.stderr
    assert list(json.loads(file.read_text().replace("// mine", ""))["mcpServers"]) == ["sad", "retinue"]
    assert _imports(run) == ["loud"]


@pytest.mark.usefixtures("hub")
def test_the_servers_of_a_project_move_too_and_its_file_gets_no_token(
    home: Path, run: Run, tmp_path: Path
) -> None:
    project = tmp_path / "app"
    project.mkdir()
    shared, own = project / ".mcp.json", home / ".claude.json"
    shared.write_text(json.dumps({"mcpServers": {"loud": LOUD}}, indent=2))
    entries = {
        "numStartups": 1,
        "projects": {str(project): {"mcpServers": {"mine": LOUD | {"env": {"A": "1"}}}}},
    }
    own.write_text(json.dumps(entries, indent=2))
    before = shared.read_bytes(), own.read_bytes()
    done = run("connect", "claude", "--replace", "--yes", "--project", str(project))
    assert done.returncode == 0, done.stderr
    assert json.loads(shared.read_text()) == {"mcpServers": {}}
    written = json.loads(own.read_text())
    assert written["projects"][str(project)]["mcpServers"] == {}
    assert list(written["mcpServers"]) == ["retinue"]
    assert sorted(_imports(run)) == ["loud", "mine"]
    own.write_text(own.read_text().replace('"numStartups": 1', '"numStartups": 2'))
    assert run("connect", "claude", "--remove").returncode == 0
    assert shared.read_bytes() == before[0]
    assert own.read_bytes() == before[1].replace(b'"numStartups": 1', b'"numStartups": 2')
    assert _imports(run) == []


WITH_PROJECTS = [name for name, client in CLIENTS.items() if client.project_file]


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("name", WITH_PROJECTS)
def test_no_file_of_a_project_ever_holds_the_token(
    home: Path, run: Run, tmp_path: Path, retinue_home: Path, name: str
) -> None:
    """Also with a project that names a hub already, and after the servers were put back."""
    client, project, token = CLIENTS[name], tmp_path / "app", State(retinue_home).local_token()
    shared = project / client.project_file
    shared.parent.mkdir(parents=True, exist_ok=True)
    servers: dict[str, Any] = {"loud": LOUD, "kept": LOUD | {"env": {"A": "1"}}}
    own_entry: dict[str, Any] = {client.url_key: "http://127.0.0.1:9/mcp"} if client.url_key else LOUD
    if client.format == "toml":
        text = ""
        for server, entry in {**servers, "retinue": own_entry}.items():
            text = set_table(text, (client.container, server), entry, frozenset(), "f")
    else:
        text = json.dumps({client.container: {**servers, "retinue": own_entry}})
    shared.write_text(text)

    of_project = ("--project", str(project), "--keep", "retinue")

    def list_tokens() -> list[Path]:
        return [path for path in project.rglob("*") if path.is_file() and token.encode() in path.read_bytes()]

    for arguments in (
        (),
        ("--remove",),
        ("--replace", "--yes", *of_project, "--keep", "kept"),
        (),
        ("--replace", "--yes", *of_project),
        ("--remove",),
        ("--replace", "--yes", *of_project, "--print"),
    ):
        done = run("connect", name, *arguments)
        assert done.returncode == 0, (arguments, done.stderr)
        assert list_tokens() == [], arguments
        if client.url_key is not None and arguments == ():
            assert token in _file(home, name).read_text(), "in the person's own configuration"
    assert shared.read_bytes() == text.encode()


@pytest.mark.usefixtures("hub")
def test_two_moves_at_once_lose_nothing(home: Path, run: Run) -> None:
    with ExitStack() as stack:
        files = [
            _write(home, name, {f"loud-{name}": LOUD | {"env": {"A": name}}}) for name in ("cursor", "zed")
        ]
        commands = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "retinue", "connect", name, "--replace", "--yes"],
                    cwd=ROOT,
                    env={**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config")},
                    stderr=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for name in ("cursor", "zed", "cursor")
        ]
        ended = [(*command.communicate(timeout=120), command.returncode) for command in commands]
    assert ended[1][2] == 0, ended[1]
    assert 0 in (ended[0][2], ended[2][2]), ended
    assert sorted(_imports(run)) == ["loud-cursor", "loud-zed"]
    assert ['"retinue"' in file.read_text() for file in files] == [True, True]
    for name in ("cursor", "zed"):
        assert run("connect", name, "--remove").returncode == 0
    assert _imports(run) == []
    assert ["foreign_server" in file.read_text() for file in files] == [True, True]


def test_without_a_hub_nothing_is_moved(home: Path, run: Run) -> None:
    file = _write(home, "zed", {"loud": LOUD})
    before = file.read_bytes()
    refused = run("connect", "zed", "--replace", "--yes")
    assert "no hub runs" in refused.stderr
    assert "retinue hub" in refused.stderr
    assert file.read_bytes() == before


@pytest.mark.usefixtures("hub")
def test_a_link_is_followed_and_what_is_broken_or_not_confirmed_stays(home: Path, run: Run) -> None:
    file = _write(home, "gemini", {"loud": LOUD})
    real = home / "dotfiles.json"
    file.rename(real)
    file.symlink_to(real)
    before = real.read_bytes()
    unsure = run("connect", "gemini", "--replace")
    assert unsure.returncode == 2
    assert "agent loud" in unsure.stdout
    assert "add --yes" in unsure.stderr
    assert real.read_bytes() == before
    assert run("connect", "gemini", "--replace", "--yes").returncode == 0
    assert file.is_symlink()
    assert run("connect", "gemini", "--remove").returncode == 0
    assert real.read_bytes() == before
    real.write_text('{"mcpServers": {"loud": ')
    broken = run("connect", "gemini", "--replace", "--yes")
    assert broken.returncode == 2
    assert "no JSON at line 1" in broken.stderr
    assert _imports(run) == []


@pytest.mark.usefixtures("hub")
def test_what_was_added_after_a_move_moves_later_and_all_comes_back(home: Path, run: Run) -> None:
    file = _write(home, "zed", {"loud": LOUD})
    assert run("connect", "zed", "--replace", "--yes").returncode == 0
    again = run("connect", "zed", "--replace", "--yes")
    assert (again.returncode, "no server to move" in again.stdout) == (0, True)
    text = file.read_text()
    entry = json.dumps(LOUD | {"env": {"A": "1"}})
    file.write_text(text.replace('"context_servers": {', f'"context_servers": {{\n      "second": {entry},'))
    with_second = _servers(file, "zed")
    assert list(with_second) == ["second", "retinue"]
    assert run("connect", "zed", "--replace", "--yes").returncode == 0
    assert list(_servers(file, "zed")) == ["retinue"]
    assert sorted(_imports(run)) == ["loud", "second"]
    back = run("connect", "zed", "--remove")
    assert back.returncode == 0, back.stderr
    assert _servers(file, "zed") == {"loud": LOUD, "second": with_second["second"]}
    assert "// mine" in file.read_text()
    assert _imports(run) == []


@pytest.mark.usefixtures("hub")
def test_a_file_that_cannot_be_written_is_refused_before_anything_happens(home: Path, run: Run) -> None:
    file = _write(home, "cursor", {"loud": LOUD})
    before = file.read_bytes()
    with _read_only(file):
        refused = run("connect", "cursor", "--replace", "--yes")
    assert refused.returncode != 0
    assert str(file) in refused.stderr
    assert file.read_bytes() == before
    assert _imports(run) == []


@pytest.mark.usefixtures("hub")
def test_a_move_that_is_killed_leaves_servers_that_can_be_put_back(home: Path, run: Run) -> None:
    file = _write(home, "cursor", {"loud": LOUD, "second": LOUD | {"env": {"A": "1"}}})
    before = file.read_bytes()
    command = [sys.executable, "-m", "retinue", "connect", "cursor", "--replace", "--yes"]
    environment = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config")}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as moving:
        wait_until(lambda: len(_imports(run)) == 2, "the imports are kept")
        moving.kill()
    run("connect", "cursor", "--remove")
    assert file.read_bytes() == before
    assert _imports(run) == []
    assert run("connect", "cursor", "--replace", "--yes").returncode == 0
    assert list(_servers(file, "cursor")) == ["retinue"]
    assert run("connect", "cursor", "--remove").returncode == 0
    assert file.read_bytes() == before


@pytest.mark.usefixtures("hub")
def test_a_move_under_another_name_says_how_to_undo_it(home: Path, run: Run) -> None:
    file = _write(home, "cursor", {"loud": LOUD})
    before = file.read_bytes()
    moved = run("connect", "cursor", "--replace", "--yes", "--name", "mesh")
    assert "put everything back with: retinue connect cursor --remove --name mesh\n" in moved.stdout
    unnamed = run("connect", "cursor", "--remove")
    assert "servers were moved under the name 'mesh'" in unnamed.stderr
    assert "retinue connect cursor --remove --name mesh" in unnamed.stderr
    assert run("connect", "cursor", "--remove", "--name", "mesh").returncode == 0
    assert file.read_bytes() == before
    assert _imports(run) == []


@pytest.mark.usefixtures("hub")
def test_the_mode_of_the_file_comes_back_with_its_bytes(home: Path, run: Run) -> None:
    file = _write(home, "cursor", {"loud": LOUD})
    file.chmod(0o644)
    assert run("connect", "cursor", "--replace", "--yes").returncode == 0
    assert file.stat().st_mode & 0o777 == 0o600  # it holds the token of the hub
    assert run("connect", "cursor", "--remove").returncode == 0
    assert file.stat().st_mode & 0o777 == 0o644


@pytest.mark.usefixtures("hub")
def test_a_refused_move_names_every_server_that_does_not_run(home: Path, run: Run) -> None:
    missing = {"command": "no-such-program"}
    file = _write(home, "cursor", {"loud": LOUD, "broken": BROKEN, "gone here": missing})
    before = file.read_bytes()
    refused = run("connect", "cursor", "--replace", "--yes")
    assert "'broken' does not run in the mesh: it ended with code 3: TOKEN is not set" in refused.stderr
    assert "'gone here' does not run in the mesh: no-such-program does not start" in refused.stderr
    assert "--keep broken --keep 'gone here'" in refused.stderr
    assert file.read_bytes() == before
    assert _imports(run) == []
    kept = run("connect", "cursor", "--replace", "--yes", "--keep", "broken", "--keep", "gone here")
    assert kept.returncode == 0, kept.stderr


def test_the_hub_itself_stays_however_it_is_named(home: Path, run: Run, tmp_path: Path, port: int) -> None:
    with inside("hub", "--bare", "--port", str(port), cwd=tmp_path) as hub:
        hub.wait_for("0 agents")
        own = {"url": f"http://localhost:{port}/mcp"}
        file = _write(home, "cursor", {"loud": LOUD, "mesh": own})
        moved = run("connect", "cursor", "--replace", "--yes")
        assert moved.returncode == 0, moved.stderr
        assert "stays: it is this hub" in moved.stdout
        assert _servers(file, "cursor")["mesh"] == own
        assert _imports(run) == ["loud"]


def _servers(file: Path, client: str) -> dict[str, Any]:
    return CLIENTS[client].list_entries(file.read_text(), "f")


@contextmanager
def _read_only(file: Path) -> Iterator[None]:
    """Keep even the administrator from writing: by the immutable flag if it can be set, else by the mode."""
    flagged = subprocess.run(["chattr", "+i", str(file)], capture_output=True, check=False).returncode == 0
    mode = file.stat().st_mode
    if not flagged:
        if os.geteuid() == 0:
            pytest.skip("the administrator writes everything here")
        file.chmod(0o400)
    try:
        yield
    finally:
        if flagged:
            subprocess.run(["chattr", "-i", str(file)], check=True)
        else:
            file.chmod(mode)
