"""``retinue up`` killed at each of its stages: the digest before serves, and the next ``up`` succeeds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest

from tests.processes.commands import retinue, run_command
from tests.processes.killed_team_command import STAGES
from tests.processes.running import program, wait_until

OF_A_FIRST_START = ("switched", "checked")
"""The stages of a team that is down; where another digest runs, the hub goes on with the rollout."""


@dataclass(frozen=True)
class Teams:
    """A hub in a folder, and the digests of one team."""

    folder: Path
    digests: list[str] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        return {"RETINUE_HOME": str(self.folder / "state")}

    def run(self, *arguments: str) -> str:
        return retinue(*arguments, cwd=self.folder, environment=self.environment)

    def greet(self) -> str:
        arguments = ("call", "greet", '{"name": "Ada"}', "--json")
        done = run_command(*arguments, cwd=self.folder, environment=self.environment)
        return str(orjson.loads(done.stdout)["text"]) if done.returncode == 0 else ""

    def read_row(self) -> dict[str, object]:
        row: dict[str, object] = orjson.loads(self.run("team", "--json"))["teams"][0]
        return row

    def is_settled(self) -> bool:
        rows = orjson.loads((self.folder / "state" / "teams" / "teams.json").read_bytes())
        return rows["editorial"]["undo"] is None

    def kill(self, stage: str, *arguments: str) -> None:
        """Run a command that is killed after a stage."""
        command = [sys.executable, "-m", "tests.processes.killed_team_command", stage, *arguments]
        root = Path(__file__).resolve().parents[2]
        environment = {**os.environ, **self.environment, "PYTHONPATH": str(root)}
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.fixture(scope="module")
def teams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Teams]:
    teams = Teams(tmp_path_factory.mktemp("teams"))
    teams.run("new", "--team", "editorial")
    files = [teams.folder / "editorial" / name for name in ("agents/greeter/agent.py", "team.toml")]
    texts = [file.read_text() for file in files]
    for number in range(len(STAGES) + 1):
        for file, text in zip(files, texts, strict=True):
            file.write_text(text.replace("Hello", f"Hello {number}").replace("0.1.0", f"0.{number + 1}.0"))
        teams.run("lock", "editorial")
        teams.digests.append(teams.run("pack", "editorial"))
    with program("hub", "--bare", "--port", "0", cwd=teams.folder, environment=teams.environment) as hub:
        hub.wait_for("hub at")
        teams.run("up", teams.digests[0], "--yes")
        yield teams
        assert "Traceback" not in hub.output


def test_the_hub_adds_the_schedules_of_a_command_that_was_killed_before(teams: Teams) -> None:
    folder = teams.folder / "planned"
    teams.run("new", "--team", "planned")
    text = (folder / "team.toml").read_text()
    schedule = '[[schedules]]\nworkflow = "planned-smoke"\nevery = "1d"\ninput = { who = "Ada" }\n'
    (folder / "team.toml").write_text(f"{text}\n{schedule}")
    teams.run("lock", "planned")
    teams.kill("settled", "up", teams.run("pack", "planned"), "--yes")
    wait_until(lambda: "planned.planned-smoke" in teams.run("schedules"), "the schedule of the team")
    (row,) = orjson.loads(teams.run("team", "planned", "--json"))["teams"]
    assert (row["active"] is not None, row["is_unscheduled"]) == (True, False)
    teams.run("down", "planned")
    assert "planned.planned-smoke" not in teams.run("schedules")


@pytest.mark.parametrize("stage", STAGES)
def test_after_a_kill_the_hub_and_the_commands_have_the_digest_before(teams: Teams, stage: str) -> None:
    if stage in OF_A_FIRST_START:
        teams.run("down", "editorial")
        wait_until(lambda: not teams.greet(), "no greeting")
    row, greeting = teams.read_row(), teams.greet()
    number = list(STAGES).index(stage) + 1
    up = ("up", teams.digests[number], "--yes", "--steps", "100", "--hold", "0")
    teams.kill(stage, *up)

    # no command runs: the hub puts it back
    wait_until(teams.is_settled, "the row before")
    wait_until(lambda: teams.greet() == greeting, "the greeting of the digest before")
    assert {**teams.read_row(), "failed": {}, "programs": []} == {**row, "failed": {}, "programs": []}

    assert "serves" in teams.run(*up)
    assert not [*(teams.folder / "state" / "teams").rglob(".incoming-*")]
    assert (teams.read_row()["active"], teams.greet()) == (teams.digests[number], f"Hello {number}, Ada!")
