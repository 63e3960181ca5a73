"""What becomes of ``runs.db`` between a crash and the next start is noticed, and named with the remedy."""

from __future__ import annotations

import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.processes.commands import run_command
from tests.processes.running import program, wait_until

FLOW = "name: w\nsteps: [{id: asked, wait_for: {topic: go, timeout: 1h}}]\n"


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state folder of a process that was killed while its run waited."""
    folder = tmp_path_factory.mktemp("crashed")
    (folder / "flow.yaml").write_text(FLOW)
    environment = {"RETINUE_HOME": str(folder / "state")}
    with program("run", "flow.yaml", "--id", "r", cwd=folder, environment=environment) as running:
        running.wait_for("retinue signal r go")
        running.send(signal.SIGKILL)
        running.wait()
    return folder / "state"


@pytest.fixture
def home(crashed: Path, retinue_home: Path) -> Path:
    shutil.copytree(crashed, retinue_home, dirs_exist_ok=True)
    return retinue_home


def remove_wal(runs: Path) -> None:
    runs.with_name("runs.db-wal").unlink()
    runs.with_name("runs.db-shm").unlink(missing_ok=True)


def empty(runs: Path) -> None:
    remove_wal(runs)
    runs.write_bytes(b"")


def checkpoint(runs: Path) -> None:
    with closing(sqlite3.connect(runs)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def cut(runs: Path) -> None:
    checkpoint(runs)
    content = runs.read_bytes()
    runs.write_bytes(content[: len(content) // 2])


def turn_back(runs: Path) -> None:
    """As after a crash with all but the newest changes in the file: another process has counted since."""
    checkpoint(runs)
    before = runs.read_bytes()
    with program("worker", cwd=runs.parent) as worker:
        worker.wait_for("worker on")
        worker.send(signal.SIGKILL)
        worker.wait()
    runs.write_bytes(before)
    remove_wal(runs)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (remove_wal, "its newest changes are gone, with runs.db-wal"),
        (turn_back, "its newest changes are gone, with runs.db-wal"),
        (empty, "it is empty; it held runs"),
        (cut, "malformed"),
    ],
)
def test_runs_that_were_damaged_or_lost_are_named_by_hub_commands_and_doctor(
    damage: Callable[[Path], None], problem: str, home: Path, tmp_path: Path
) -> None:
    damage(home / "runs.db")
    commands: list[tuple[str, ...]] = [("hub", "--bare", "--port", "0")]
    commands += [("signal", "r", "go")] if damage is cut else [("worker",)] if damage is empty else []
    for command in commands:
        refused = run_command(*command, cwd=tmp_path)
        assert refused.returncode == 8, refused
        (line,) = refused.stderr.splitlines()
        assert f"{home}/runs.db is damaged" in line
        assert problem in line
        assert "restore runs.db from a backup, or move runs.db* away" in line
    doctor = run_command("doctor", cwd=tmp_path)
    assert doctor.returncode == 1
    (row,) = (line for line in doctor.stdout.splitlines() if "\truns\t" in line)
    assert row.startswith("fail")
    assert problem in row
    for file in home.glob("runs.db*"):
        file.rename(tmp_path / file.name)
    assert "no runs yet" in run_command("runs", cwd=tmp_path).stderr


def test_runs_with_their_newest_changes_in_the_wal_go_on(home: Path, tmp_path: Path) -> None:
    assert (home / "runs.db-wal").stat().st_size > 0
    assert "\truns\t" in run_command("doctor", cwd=tmp_path).stdout
    with program("worker", cwd=tmp_path) as worker:
        worker.wait_for("worker on")
        assert run_command("signal", "r", "go", "7", cwd=tmp_path).returncode == 0
        wait_until(lambda: "done" in run_command("runs", cwd=tmp_path).stdout, "the run ends")


def test_another_database_in_its_place_is_taken_as_it_is(home: Path, tmp_path: Path) -> None:
    """As when a backup is restored: it has counted less, and is another one."""
    remove_wal(home / "runs.db")
    (home / "runs.db").unlink()
    with closing(sqlite3.connect(home / "runs.db")) as connection, connection:
        connection.execute("CREATE TABLE retinue_mark (id TEXT NOT NULL, count BIGINT NOT NULL)")
        connection.execute("INSERT INTO retinue_mark VALUES ('other', 0)")
    assert "no runs yet" in run_command("runs", cwd=tmp_path).stderr
