"""The hub as a process: found by its state, alone on it, and gone without leaving anything."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from pathlib import Path

import orjson
import pytest

from tests.processes.commands import run_command
from tests.processes.inside import inside
from tests.processes.running import (
    descendants,
    execute,
    get,
    is_running,
    program,
    wait_until,
    write_agent,
)
from tests.requirements import requirement


def test_a_hub_says_where_it_is_and_takes_it_back_on_a_clean_exit(
    tmp_path: Path, retinue_home: Path, port: int
) -> None:
    with program("hub", "--bare", "--port", str(port), cwd=tmp_path) as hub:
        url = hub.url_in("hub at")
        address = orjson.loads((retinue_home / "hub.json").read_bytes())
        assert (address["url"], address["pid"]) == (url, hub.process.pid)
        assert get(f"{url}/health")[1]["status"] == "ok"
        assert hub.wait_for("exposed to MCP clients").startswith("0 agents, 0 skills, 0 exposed")
        assert "expose=True" not in hub.output
        assert hub.end(signal.SIGINT) == 0
    assert not (retinue_home / "hub.json").exists()


def test_a_second_hub_on_one_state_is_refused_in_one_line_that_names_the_first(
    tmp_path: Path, port: int
) -> None:
    with program("hub", "--bare", "--port", str(port), cwd=tmp_path) as first:
        url = first.url_in("hub at")
        second = run_command("hub", "--bare", "--port", "0", cwd=tmp_path)
        assert second.returncode != 0
        (line,) = (second.stdout + second.stderr).splitlines()
        assert url in line
        assert str(first.process.pid) in line
        assert get(f"{url}/health")[0] == 200


def test_a_hub_whose_port_is_taken_says_so_with_the_remedy(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = run_command("hub", "--bare", "--port", str(port), cwd=tmp_path)
        assert refused.returncode != 0
        assert f"127.0.0.1:{port} is in use" in refused.stderr
        assert "--port" in refused.stderr


def test_no_orphan_stays_when_the_hub_is_killed_and_a_new_hub_can_start(
    tmp_path: Path, retinue_home: Path, port: int
) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    (tmp_path / "retinue.toml").write_text(f"[[agents]]\ntarget = {str(agent)!r}\n")
    with program("hub", "--bare", "--port", str(port), cwd=tmp_path) as hub:
        url = hub.url_in("hub at")
        hub.wait_for("one-agent")
        wait_until(lambda: execute(url, "who").get("result") == "one", "the agent answers")
        children = descendants(hub.process.pid)
        assert children
        hub.send(signal.SIGKILL)
        hub.wait()
        wait_until(lambda: not any(map(is_running, children)), "the children of the killed hub end")
    assert (retinue_home / "hub.json").exists()
    with program("hub", "--bare", "--port", str(port), cwd=tmp_path) as again:
        again.url_in("hub at")
        again.wait_for("one-agent")


def test_a_killed_agent_is_started_again_by_its_supervisor(tmp_path: Path, port: int) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    (tmp_path / "retinue.toml").write_text(f"[[agents]]\ntarget = {str(agent)!r}\n")
    keys = {"GITHUB_TOKEN": "gh-secret", "RETINUE_DATABASE": f"sqlite:///{tmp_path}/runs.db"}
    with program("hub", "--bare", "--port", str(port), cwd=tmp_path, environment=keys) as hub:
        url = hub.url_in("hub at")
        hub.wait_for("one-agent")
        hub.wait_for("1 agents")
        (child,) = descendants(hub.process.pid)
        inherited = Path(f"/proc/{child}/environ").read_text()
        assert "PATH=" in inherited
        assert not [name for name in keys if f"{name}=" in inherited]

        os.kill(child, signal.SIGKILL)
        hub.wait_for("ended; starting it again")
        wait_until(lambda: execute(url, "who").get("result") == "one", "the agent answers again")
        assert descendants(hub.process.pid) != {child}


def test_an_agent_that_does_not_start_is_said_so_and_the_hub_goes_on_and_tries_again(
    tmp_path: Path, port: int
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise ValueError('no good')\n")
    good = write_agent(tmp_path, "good-agent", "1.0.0", "who", "good")
    (tmp_path / "retinue.toml").write_text(
        f"[[agents]]\ntarget = 'broken.py'\n[[agents]]\ntarget = {str(good)!r}\n"
    )
    with program("hub", "--bare", "--port", str(port), cwd=tmp_path) as hub:
        url = hub.url_in("hub at")
        assert "broken.py did not start" in hub.wait_for("no good")
        hub.wait_for("1 agents")
        assert execute(url, "who")["result"] == "good"
        broken.write_text(good.read_text().replace("good-agent", "mended-agent").replace("'who'", "'other'"))
        hub.wait_for("mended-agent")


@pytest.mark.parametrize("content", [b"no database at all" * 100, b""])
def test_a_damaged_database_is_named_with_the_way_to_mend_it(
    tmp_path: Path, retinue_home: Path, port: int, content: bytes
) -> None:
    retinue_home.mkdir(parents=True)
    (retinue_home / "retinue.db").write_bytes(content)
    if content:
        refused = run_command("hub", "--bare", "--port", str(port), cwd=tmp_path)
        assert refused.returncode != 0
        assert "retinue.db" in refused.stderr
        assert "Traceback" not in refused.stdout + refused.stderr
        assert (retinue_home / "retinue.db").read_bytes() == content
    else:
        with inside("hub", "--bare", "--port", str(port), cwd=tmp_path) as hub:
            hub.url_in("hub at")


@requirement("P-17")
def test_one_damaged_repository_leaves_the_other_agents_usable(
    tmp_path: Path, retinue_home: Path, port: int
) -> None:
    good = write_agent(tmp_path, "good-agent", "1.0.0", "who", "good")
    bad = write_agent(tmp_path, "bad-agent", "1.0.0", "other", "bad")
    with (
        inside("serve", str(good), cwd=tmp_path) as first,
        inside("serve", str(bad), cwd=tmp_path) as second,
    ):
        first.wait_for("published")
        second.wait_for("published")
        (retinue_home / "registry" / "agents" / "bad" / "index.json").write_text("{broken")
        with inside("hub", "--bare", "--port", str(port), cwd=tmp_path) as hub:
            url = hub.url_in("hub at")
            hub.wait_for("1 agents")
            listing = execute(url, "list_agents", {"detailed": True})["result"]
            assert any("agents/bad" in str(source) for source in listing["missing"]), listing
            assert execute(url, "who")["result"] == "good"


def test_a_hub_whose_state_folder_was_deleted_says_so_and_stops(
    tmp_path: Path, retinue_home: Path, port: int
) -> None:
    with program("hub", "--bare", "--port", str(port), cwd=tmp_path) as hub:
        hub.wait_for("exposed to MCP clients")

        def delete() -> bool:
            # a hub that has just started still writes there: a folder in use goes at the second try
            shutil.rmtree(retinue_home, ignore_errors=True)
            return not retinue_home.exists()

        wait_until(delete, "the folder is deleted")
        assert hub.wait() == 1
        assert f"stopping: the state folder {retinue_home} was deleted or replaced" in hub.output
        assert "Traceback" not in hub.output
    with program("hub", "--bare", "--port", str(port), cwd=tmp_path) as again:
        again.wait_for("exposed to MCP clients")
