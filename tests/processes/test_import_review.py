"""What a person reads about imports, in real processes: what waits, what is wrong, what is slow."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from tests.processes.inside import inside
from tests.processes.test_import_names import SERVER, Run
from tests.processes.test_import_names import run as run

LATE = "import time; time.sleep(4); from tests.mcp.upstream.foreign_server import main; main('plain')"


@pytest.fixture
def hub(tmp_path: Path, port: int) -> Iterator[str]:
    with inside("hub", "--bare", "--port", str(port), cwd=tmp_path) as hub:
        hub.wait_for("0 agents")
        yield f"http://127.0.0.1:{port}"


@pytest.mark.usefixtures("hub")
def test_a_changed_tool_is_read_before_it_is_accepted(run: Run) -> None:
    assert run("import", "mcp-server", "loud", "--", *SERVER).stdout.startswith("loud: 9 skills: ")
    said = run("import", "mcp-server", "loud", "--replace", "--", *SERVER[:-1], "changed").stdout
    assert "loud: waits to be accepted: shout; see it: retinue imports accept loud --show" in said
    shown = run("imports", "accept", "loud", "--show").stdout
    assert shown.startswith("shout, changed:\n")
    assert '- "description": "Shouts a text."' in shown
    assert '+ "description": ' in shown
    doctor = run("doctor").stdout
    assert "import loud" in doctor
    assert "waits to be accepted: shout" in doctor
    assert "retinue imports accept loud --show" in doctor
    assert orjson.loads(run("imports", "--json").stdout)["imports"][0]["waiting"] == ["shout"]
    assert run("imports", "accept", "loud").stdout == "accepted: shout\n"
    assert run("imports", "accept", "loud", "--show").stdout == "nothing waits to be accepted\n"


@pytest.mark.usefixtures("hub")
def test_what_is_wrong_with_an_import_is_a_finding_of_doctor(run: Run) -> None:
    assert "\timports\t" not in run("doctor").stdout
    run("import", "mcp-server", "gone", "--", "no-such-program")
    run("import", "mcp-server", "loud", "--", *SERVER)
    found = run("doctor")
    assert found.returncode == 0
    assert "no-such-program does not start" in found.stdout
    assert "retinue imports remove gone" in found.stdout
    run("imports", "remove", "gone")
    assert "\timports\t1 of 1 connected" in run("doctor").stdout


@pytest.mark.usefixtures("hub")
def test_a_tool_that_cannot_be_called_is_a_row_with_the_reason(run: Run) -> None:
    server = [sys.executable, "-m", "tests.mcp.upstream.task_server", "silent"]
    assert run("import", "mcp-server", "slow", "--", *server).stdout == "slow: 1 skills: state\n"
    reason = "it runs as a task only (taskSupport: required), and the server does not run tools as tasks"
    assert f"slow: research is left out: {reason}\n" in run("imports").stdout
    (row,) = orjson.loads(run("imports", "--json").stdout)["imports"]
    assert row["left_out"]["ask"] == reason


@pytest.mark.usefixtures("hub")
def test_a_server_that_takes_long_is_named_while_it_starts(run: Run) -> None:
    said = run("import", "mcp-server", "late", "--start-s", "30", "--", sys.executable, "-c", LATE)
    assert said.stdout == "late: 9 skills: shout, count, book, think, say, hang, ends, die …\n"
    assert "waiting for late, which may take 30 s to start; Ctrl-C leaves it to the hub" in said.stderr


@pytest.mark.usefixtures("hub")
def test_a_server_that_does_not_start_in_its_time_is_told_the_setting_and_the_option(run: Run) -> None:
    silent = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    failed = run("import", "mcp-server", "mute", "--start-s", "0.5", "--", *silent)
    assert failed.returncode == 7
    assert "it did not start within 0.5 s (imports.mute.start_s)" in failed.stderr


def test_a_command_in_one_word_is_told_apart(run: Run) -> None:
    refused = run("import", "mcp-server", "sums", "--", "python sums.py")
    assert refused.returncode == 2
    assert "give its words one by one: -- python sums.py" in refused.stderr


def test_a_time_that_is_none_is_refused(run: Run) -> None:
    refused = run("import", "mcp-server", "sums", "--start-s", "0", "--", "python", "sums.py")
    assert refused.returncode == 2
    assert "imports.sums.start_s: Input should be greater than 0" in refused.stderr
