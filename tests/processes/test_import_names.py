"""Names of imports, in real processes: none is lost, none covers an agent, none is the hub itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.processes.commands import run_command
from tests.processes.inside import inside
from tests.processes.running import wait_until

ROOT = Path(__file__).resolve().parents[2]
SERVER = [sys.executable, "-m", "tests.mcp.upstream.foreign_server", "plain"]
LOUD = {"command": SERVER[0], "args": SERVER[1:], "cwd": str(ROOT)}
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs ``retinue`` for a person whose home is empty."""

    def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        return run_command(*arguments, cwd=cwd, environment={"HOME": str(tmp_path)})

    return run


@pytest.fixture
def hub(tmp_path: Path, port: int) -> Iterator[str]:
    with inside("hub", "--bare", "--port", str(port), cwd=tmp_path) as hub:
        hub.wait_for("0 agents")
        yield f"http://127.0.0.1:{port}"


def _connects(run: Run) -> dict[str, str]:
    rows = orjson.loads(run("imports", "--json").stdout)["imports"]
    return {row["name"]: row["connects_to"] for row in rows}


def _write_cursor(home: Path, servers: dict[str, Any]) -> None:
    (home / ".cursor").mkdir(exist_ok=True)
    (home / ".cursor" / "mcp.json").write_bytes(orjson.dumps({"mcpServers": servers}))


def test_an_import_from_a_client_replaces_no_import_of_that_name(tmp_path: Path, run: Run) -> None:
    assert run("import", "mcp-server", "files", "--", "npx", "-y", "server-files").returncode == 0
    _write_cursor(tmp_path, {"files": {"command": "other"}, "same": {"command": "third"}})
    said = run("import", "cursor", "--all")
    assert "files becomes files-cursor: files is the import of npx -y server-files" in said.stdout
    assert _connects(run) == {"files": "npx -y server-files", "files-cursor": "other", "same": "third"}
    again = run("import", "cursor", "--all")
    assert "files is imported already, as files-cursor" in again.stdout
    assert "same is imported already, as same" in again.stdout
    assert len(_connects(run)) == 3


def test_servers_whose_names_become_alike_are_all_imported(tmp_path: Path, run: Run) -> None:
    servers = {"My Files": "one", "my-files": "two", "": "three", "日本": "four"}
    _write_cursor(tmp_path, {name: {"command": command} for name, command in servers.items()})
    assert run("import", "cursor", "--all").returncode == 0
    assert _connects(run) == {
        "my-files": "one",
        "my-files-cursor": "two",
        "server": "three",
        "server-cursor": "four",
    }


def test_an_import_replaces_another_on_demand_only_and_says_so(run: Run) -> None:
    assert "replaces" not in run("import", "mcp-server", "files", "--", "npx", "one").stdout
    assert "replaces" not in run("import", "mcp-server", "files", "--", "npx", "one").stdout
    refused = run("import", "mcp-server", "files", "--", "npx", "two")
    assert refused.returncode == 2
    assert "'files' is the import of npx one already" in refused.stderr
    assert "--replace" in refused.stderr
    assert _connects(run) == {"files": "npx one"}
    said = run("import", "mcp-server", "files", "--replace", "--", "npx", "two")
    assert "files replaces the import of npx one" in said.stdout
    assert _connects(run) == {"files": "npx two"}


def test_the_name_of_an_agent_that_runs_is_refused(run: Run, hub: str, tmp_path: Path) -> None:
    refused = run("import", "mcp-server", "retinue", "--", *SERVER)
    assert refused.returncode == 2
    assert "'retinue' is the agent of the hub itself" in refused.stderr
    assert _connects(run) == {}
    assert run("new", "my-agent", cwd=tmp_path).returncode == 0
    with inside("serve", str(tmp_path / "my-agent" / "agent.json"), cwd=tmp_path) as agent:
        agent.wait_for("published")
        wait_until(lambda: "my-agent" in run("agents").stdout, "the hub lists the agent")
        refused = run("import", "mcp-server", "my-agent", "--", *SERVER)
        assert refused.returncode == 2
        assert "an agent is called 'my-agent' already" in refused.stderr
        assert _connects(run) == {}


def test_a_table_of_the_settings_is_not_covered_by_an_import_of_its_name(run: Run, tmp_path: Path) -> None:
    (tmp_path / "retinue.toml").write_text('[imports.files]\ncommand = "npx"\n')
    refused = run("import", "mcp-server", "files", "--", "other", cwd=tmp_path)
    assert refused.returncode == 2
    assert "imports.files: it is set in retinue.toml" in refused.stderr


def test_the_hub_does_not_import_itself(run: Run, hub: str) -> None:
    port = hub.rpartition(":")[2]
    urls = [f"{hub}/mcp", f"http://localhost:{port}/mcp/", f"http://[::1]:{port}/mcp"]
    for given in (*(["--url", url] for url in urls), ["--", "/opt/bin/retinue", "mcp"]):
        refused = run("import", "mcp-server", "mesh", *given)
        assert refused.returncode == 2, given
        assert "this is the hub of this state itself" in refused.stderr
    assert _connects(run) == {}
    assert run("import", "mcp-server", "other", "--url", "http://127.0.0.1:1/mcp").returncode == 7
    assert list(_connects(run)) == ["other"]


def test_a_hub_that_its_settings_name_as_an_import_is_not_connected_to_itself(
    run: Run, tmp_path: Path, port: int
) -> None:
    (tmp_path / "retinue.toml").write_text(f'[imports.mesh]\nurl = "http://localhost:{port}/mcp"\n')
    with inside("hub", "--bare", "--port", str(port), cwd=tmp_path) as hub:
        hub.wait_for("hub at")
        reason = "its url is that of this hub itself: remove it"
        wait_until(lambda: reason in run("imports", cwd=tmp_path).stdout, "the reason is told")


@pytest.mark.parametrize("url", ["notes", "ftp://x.example/mcp", "http://", "http://[::1"])
def test_a_url_that_cannot_be_one_is_refused_before_it_is_kept(run: Run, url: str) -> None:
    refused = run("import", "mcp-server", "docs", "--url", url)
    assert refused.returncode == 2
    assert f"--url: {url!r} is not an http or https url" in refused.stderr
    assert "https://" in refused.stderr
    assert _connects(run) == {}
