"""``retinue backup`` copies the state of a running hub; a hub on the copy goes on where it was."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest
import urllib3

from tests.processes.commands import run_command
from tests.processes.running import execute, program, wait_until

AGENT = """
from retinue import Agent

agent = Agent("worker-agent", version="1.0.0")


@agent.skill
async def work(n: int) -> dict[str, int]:
    \"\"\"Adds one.\"\"\"
    return {"n": n + 1}
"""
FLOW = {
    "name": "kept",
    "steps": [
        {"id": "before", "skill": "work", "with": {"n": 1}},
        {"id": "asked", "wait_for": {"topic": "go", "timeout": "1h"}},
        {"id": "after", "skill": "work", "with": {"n": "${{ steps.asked.output }}"}},
    ],
}


def ask(*arguments: str, cwd: Path, home: Path) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, cwd=cwd, environment={"RETINUE_HOME": str(home)})


class Load(threading.Thread):
    """Starts runs, one after the other, as fast as the hub takes them."""

    def __init__(self, url: str, token: str) -> None:
        super().__init__(daemon=True)
        self.started = 0
        self._url, self._token = url, token
        self._stopped = threading.Event()

    def run(self) -> None:
        flow = {"name": "load", "steps": FLOW["steps"][:1]}
        while not self._stopped.is_set():
            with suppress(urllib3.exceptions.HTTPError):
                execute(self._url, "start_run", {"workflow": flow, "input": {}}, self._token)
                self.started += 1

    def close(self) -> None:
        self._stopped.set()
        self.join(30)


@pytest.mark.timeout(150)
async def test_a_copy_made_under_load_is_whole_private_and_goes_on_as_another_state(
    tmp_path: Path, retinue_home: Path
) -> None:
    (tmp_path / "worker.py").write_text(AGENT)
    (tmp_path / "retinue.toml").write_text("[runs]\nkeep = 500\n")
    copy = tmp_path / "copy"
    with program("serve", "worker.py", cwd=tmp_path) as served:
        served.wait_for("published")
        token = (retinue_home / "keys" / "local.token").read_text()
        with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
            url = hub.url_in("hub at")
            execute(url, "start_run", {"workflow": FLOW, "input": {}, "run": "kept"}, token)

            def is_waiting() -> bool:
                shown = execute(url, "show_run", {"run": "kept"}, token)["result"]
                return any(step["status"] == "waiting" for step in shown["steps"])

            wait_until(is_waiting, "the run waits")
            load = Load(url, token)
            load.start()
            wait_until(lambda: load.started > 5, "the load begins")
            made = await asyncio.to_thread(ask, "backup", str(copy), cwd=tmp_path, home=retinue_home)
            load.close()
            assert made.returncode == 0, made.stderr
            assert load.started > 6
        assert (copy / "retinue.toml").exists()
        assert not (copy / "hub.json").exists()
        modes = {path.stat().st_mode & 0o777 for path in [copy, *copy.rglob("*")] if path.is_dir()}
        assert modes == {0o700}
        assert {path.stat().st_mode & 0o777 for path in copy.rglob("*") if path.is_file()} == {0o600}
        for name in ("runs.db", "retinue.db"):
            with closing(sqlite3.connect(copy / name)) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        again = ask("backup", str(copy), cwd=tmp_path, home=retinue_home)
        assert again.returncode == 2
        assert "is not empty" in again.stderr
        with program(
            "hub", "--bare", "--port", "0", cwd=tmp_path, environment={"RETINUE_HOME": str(copy)}
        ) as hub:
            hub.wait_for("exposed to MCP clients")
            answered = ask("signal", "kept", "go", "6", cwd=tmp_path, home=copy)
            assert answered.returncode == 0, answered.stderr
            followed = ask("runs", "kept", "--follow", "--json", cwd=tmp_path, home=copy)
            assert followed.stdout.split() == ['{"n":7}'], followed.stderr
    assert ask("doctor", cwd=tmp_path, home=copy).returncode == 0


def test_a_copy_restored_over_its_own_state_is_not_taken_for_lost_runs(
    tmp_path: Path, retinue_home: Path
) -> None:
    (tmp_path / "flow.yaml").write_text("name: w\nsteps: [{id: a, wait_for: {topic: go, timeout: 1h}}]\n")
    with program("run", "flow.yaml", "--id", "r", cwd=tmp_path) as running:
        running.wait_for("retinue signal r go")
        assert ask("backup", str(tmp_path / "copy"), cwd=tmp_path, home=retinue_home).returncode == 0
        running.send(signal.SIGKILL)
        running.wait()
    for file in retinue_home.glob("runs.db-*"):
        file.unlink()
    (tmp_path / "copy" / "runs.db").replace(retinue_home / "runs.db")
    assert "waiting: go" in ask("runs", cwd=tmp_path, home=retinue_home).stdout


def test_a_folder_within_the_state_is_refused(tmp_path: Path, retinue_home: Path) -> None:
    retinue_home.mkdir(exist_ok=True)
    refused = ask("backup", str(retinue_home / "copy"), cwd=tmp_path, home=retinue_home)
    assert (refused.returncode, "is in the state folder" in refused.stderr) == (2, True)
