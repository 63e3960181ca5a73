"""``retinue hub --detach``, ``status``, ``stop``: a hub without a terminal, found and ended by its state."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from retinue.storage.state import State
from tests.processes.freezing import freeze
from tests.processes.running import (
    WAIT_S,
    descendants,
    execute,
    get,
    is_running,
    program,
    run_apart,
    wait_until,
    write_agent,
)


def retinue(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_apart(*arguments, cwd=cwd, environment=environment)


@pytest.fixture
def folder(tmp_path: Path, retinue_home: Path) -> Iterator[Path]:
    """A folder whose hub is stopped at the end of the test."""
    yield tmp_path
    hub = State(retinue_home).read_hub()
    if hub is not None:
        os.kill(hub.pid, signal.SIGKILL)


def detach(folder: Path, *arguments: str, **environment: str) -> str:
    """Start a hub in the background; its url."""
    environment = {"RETINUE_HUB__MODELS": "[]", **environment}
    started = retinue("hub", "--detach", "--bare", "--port", "0", *arguments, cwd=folder, **environment)
    assert started.returncode == 0, started.stderr
    assert "connect claude" in started.stderr
    return started.stdout.split()[2]


def test_a_detached_hub_answers_is_seen_by_status_and_is_gone_after_stop(
    folder: Path, retinue_home: Path
) -> None:
    url = detach(folder)
    assert get(f"{url}/health")[0] == 200
    shown = retinue("status", "--json", cwd=folder)
    assert shown.returncode == 0
    found = orjson.loads(shown.stdout)
    assert (found["status"], found["url"], found["agents"]) == ("running", url, 0)
    assert found["log"] == str(retinue_home / "hub.log")
    assert f"hub at {url}" in (retinue_home / "hub.log").read_text()
    assert f"{url}  running" in retinue("status", cwd=folder).stdout
    assert retinue("status", "--pid", cwd=folder).stdout == f"{found['pid']}\n"
    stopped = retinue("stop", cwd=folder)
    assert stopped.returncode == 0
    assert f"pid {found['pid']}" in stopped.stdout
    assert not is_running(found["pid"])
    assert not (retinue_home / "hub.json").exists()
    assert retinue("status", cwd=folder).returncode == 3


def test_a_second_detached_hub_is_refused_and_the_first_goes_on(folder: Path) -> None:
    url = detach(folder)
    second = retinue("hub", "--detach", "--bare", "--port", "0", cwd=folder)
    assert second.returncode == 8
    assert f"a hub already runs on {State(folder / 'retinue-home').root}: {url}" in second.stderr
    assert get(f"{url}/health")[0] == 200


def test_the_port_of_another_program_is_named_and_nothing_is_left_running(
    folder: Path, retinue_home: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = retinue("hub", "--detach", "--bare", "--port", str(port), cwd=folder)
    assert refused.returncode == 8
    assert re.search(rf"127.0.0.1:{port} is in use.* — choose another with --port", refused.stderr)
    assert State(retinue_home).read_hub() is None


def test_a_hub_that_ends_at_its_start_is_reported_with_the_last_line_of_its_log(folder: Path) -> None:
    (folder / "retinue.toml").write_text('[hooks]\ntoken_env = "NOT_THERE"\n')
    refused = retinue("hub", "--detach", "--bare", "--port", "0", cwd=folder)
    assert refused.returncode == 8
    assert "the hub does not start: hooks.token_env: the variable NOT_THERE is not set" in refused.stderr
    assert "hub.log" in refused.stderr


def test_the_options_of_the_command_are_those_of_the_detached_hub(folder: Path, port: int) -> None:
    registry = folder / "other registry"
    started = retinue(
        "hub",
        "-d",
        "--bare",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--registry",
        str(registry),
        cwd=folder,
    )
    assert started.stdout.startswith(f"hub at http://127.0.0.1:{port} ")
    hub = State(folder / "retinue-home").read_hub()
    assert hub is not None
    command = Path(f"/proc/{hub.pid}/cmdline").read_bytes().decode().split("\0")
    assert command[2:-1] == [
        "retinue",
        "hub",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--registry",
        str(registry),
        "--bare",
    ]


def test_the_address_of_a_killed_hub_is_no_hub_and_stop_removes_it(folder: Path, retinue_home: Path) -> None:
    detach(folder)
    hub = State(retinue_home).read_hub()
    assert hub is not None
    os.kill(hub.pid, signal.SIGKILL)
    wait_until(lambda: not is_running(hub.pid), "the hub is dead")
    shown = retinue("status", "--json", cwd=folder)
    assert (shown.returncode, orjson.loads(shown.stdout)["status"]) == (3, "killed")
    stopped = retinue("stop", cwd=folder)
    assert (stopped.returncode, stopped.stdout) == (0, "")
    assert "no hub runs" in stopped.stderr
    assert not (retinue_home / "hub.json").exists()
    detach(folder)


def test_a_pid_that_another_process_has_taken_over_is_never_signalled(
    folder: Path, retinue_home: Path
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        retinue_home.mkdir(mode=0o700)
        address = {"url": "http://127.0.0.1:1", "pid": bystander.pid, "birth": 1, "ready": True}
        (retinue_home / "hub.json").write_bytes(orjson.dumps(address))
        assert "no hub runs" in retinue("stop", "--kill", "--timeout", "0.1", cwd=folder).stderr
        assert bystander.poll() is None
        bystander.kill()


def test_stop_ends_a_hub_in_a_terminal_and_the_agents_that_it_started(
    folder: Path, retinue_home: Path
) -> None:
    agent = write_agent(folder, "one-agent", "1.0.0", "who", "one")
    (folder / "retinue.toml").write_text(f"[[agents]]\ntarget = {str(agent)!r}\n")
    with program("hub", "--bare", "--port", "0", cwd=folder) as hub:
        hub.wait_for("one-agent at")
        children = descendants(hub.process.pid)
        assert children
        found = orjson.loads(retinue("status", "--json", cwd=folder).stdout)
        assert "log" not in found, "it writes to its terminal"
        assert retinue("stop", cwd=folder).returncode == 0
        assert hub.wait() == 0
        assert "stopping: SIGTERM" in hub.output
        assert not any(is_running(child) for child in children)


def test_a_hub_that_does_not_stop_is_reported_and_killed_only_when_asked(
    folder: Path, retinue_home: Path
) -> None:
    detach(folder)
    hub = State(retinue_home).read_hub()
    assert hub is not None
    freeze(hub.pid)
    late = retinue("stop", "--timeout", "0.2", cwd=folder)
    assert late.returncode == 8
    assert "--kill" in late.stderr
    shown = retinue("status", "--json", cwd=folder, RETINUE_TIMEOUTS__PROBE_S="0.2")
    assert (shown.returncode, orjson.loads(shown.stdout)["status"]) == (7, "unanswering")
    assert retinue("stop", "--timeout", "0.2", "--kill", cwd=folder).returncode == 0
    wait_until(lambda: not is_running(hub.pid), "the hub is killed")
    assert not (retinue_home / "hub.json").exists()


def test_the_logs_are_private_begin_anew_when_they_are_full_and_keep_what_an_agent_prints(
    folder: Path, retinue_home: Path
) -> None:
    file = folder / "chatty.py"
    file.write_text(
        "import sys\n"
        "from retinue import Agent\n\n"
        "agent = Agent('chatty-agent', version='1.0.0')\n\n\n"
        "@agent.skill\n"
        "async def say(word: str) -> str:\n"
        '    """Prints a word."""\n'
        "    print(word, 'x' * 400, flush=True)\n"
        "    return word\n"
    )
    (folder / "retinue.toml").write_text(
        f"[[agents]]\ntarget = {str(file)!r}\n[logs]\nfile_bytes = 4096\nfiles = 2\n"
    )
    url = detach(folder)
    logs = retinue_home / "logs"
    for number in range(30):
        assert execute(url, "say", {"word": f"word-{number}"})["result"] == f"word-{number}"
    wait_until(lambda: (retinue_home / "hub.log.1").exists(), "the log of the hub was replaced")
    wait_until((logs / "chatty-agent.log.1").exists, "the log of the agent was replaced")

    def is_kept() -> bool:
        # lines of earlier calls that come late can push this one out of both files
        assert execute(url, "say", {"word": "the-last"})["result"] == "the-last"
        return "the-last" in read_log(logs / "chatty-agent.log")

    wait_until(is_kept, "the agent's new log is written")
    wait_until(lambda: '"skill":"say"' in read_log(retinue_home / "hub.log"), "so is the hub's")
    assert not (logs / "chatty-agent.log.2").exists()
    assert all(orjson.loads(line) for line in (logs / "chatty-agent.log").read_text().splitlines())
    for path in (retinue_home / "hub.log", retinue_home / "hub.log.1", *logs.iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def read_log(path: Path) -> str:
    """The text of a log file and of the one before it."""
    files = (path.with_name(f"{path.name}.1"), path)
    return "".join(file.read_text() for file in files if file.exists())


def test_a_hub_in_a_terminal_tells_how_to_connect_a_client(folder: Path) -> None:
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "retinue", "hub", "--bare", "--port", "0"]
    hub = subprocess.Popen(command, cwd=folder, stdout=follower, stderr=subprocess.DEVNULL)
    os.close(follower)
    printed = b""
    try:
        while b"connect claude" not in printed:
            assert select.select([leader], [], [], WAIT_S)[0], printed
            printed += os.read(leader, 4096)
    finally:
        hub.terminate()
        hub.wait(WAIT_S)
        os.close(leader)
    assert b"connect an MCP client: " in printed
