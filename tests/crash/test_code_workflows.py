"""Runs of workflows in Python, over a real hub and a real agent, go on after the hub was killed."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.crash.agents import GATED_WORKER
from tests.processes.running import Program, execute, program, wait_until
from tests.requirements import requirement

FLOWS = '''
from pathlib import Path

from retinue import Run, workflow

HERE = Path(__file__).parent


def note(n: int) -> int:
    with (HERE / "log").open("a") as log:
        log.write(f"note {n}\\n")
    return n


@workflow
async def five(run: Run, start: int) -> list[int]:
    """Works in five steps, three of them at once."""
    first = await run.call("work", n=start)
    noted = await run.step(note, first["n"])
    middle = await run.gather(*(run.call("work", n=n, timeout_s=3600) for n in (1, 2, 3)))
    approved = await run.elicit("Go on?", bool)
    last = await run.call("work", n=middle[-1]["n"])
    return [noted, *(one["n"] for one in middle), last["n"], int(approved)]
'''
SETTINGS = '[workflows]\nmodules = ["flows.py"]\n'


def read_log(folder: Path) -> Counter[str]:
    path = folder / "log"
    return Counter(path.read_text().splitlines() if path.exists() else [])


class Hub:
    """A running hub and the token of its state."""

    def __init__(self, served: Program, token: str) -> None:
        self._served = served
        self._url = served.url_in("hub at")
        self._token = token

    def ask(self, skill: str, **arguments: Any) -> Any:
        reply = execute(self._url, skill, arguments, self._token)
        assert "result" in reply, reply
        return reply["result"]

    def list_finished(self) -> set[str]:
        events = self.ask("follow_run", run="mine", wait_s=0)["events"]
        return {event["step"] for event in events if event["event"] == "step_finished"}

    def list_custom(self) -> set[str]:
        return {row["name"] for row in self.ask("list_workflows", filter="custom")["workflows"]}

    def show(self) -> Any:
        return self.ask("show_run", run="mine")

    def kill(self) -> None:
        self._served.send(signal.SIGKILL)
        self._served.wait()


@pytest.mark.timeout(600)
@requirement("P-29")
def test_no_recorded_step_runs_again_and_the_run_waits_for_its_code(
    tmp_path: Path, retinue_home: Path, database: str
) -> None:
    (tmp_path / "worker.py").write_text(GATED_WORKER)
    (tmp_path / "flows.py").write_text(FLOWS)
    settings = tmp_path / "retinue.toml"
    stored = f'database = "{database}"\n'
    settings.write_text(stored + SETTINGS)
    with program("serve", "worker.py", cwd=tmp_path) as agent:
        agent.wait_for("published")
        token = (retinue_home / "keys" / "local.token").read_text()
        with program("hub", "--bare", "--port", "0", cwd=tmp_path) as served:
            hub = Hub(served, token)
            assert "five" in hub.list_custom()
            hub.ask("start_run", workflow="five", input={"start": 0}, run="mine")
            wait_until(lambda: read_log(tmp_path)["begin 1"] == 1, "the first of three calls begins")
            wait_until(lambda: hub.list_finished() >= {"work-3", "work-4"}, "the others are recorded")
            hub.kill()
        settings.write_text(stored)
        with program("hub", "--bare", "--port", "0", cwd=tmp_path) as served:
            hub = Hub(served, token)
            # the killed hub had announced the code, until the next one has taken its lease over
            wait_until(lambda: "missing_code" in hub.show(), "the code is missed")
            shown = hub.show()
            assert (shown["status"], shown["missing_code"][:14]) == ("running", "flows.py:five ")
            hub.kill()
        settings.write_text(stored + SETTINGS)
        (tmp_path / "go").touch()
        with program("hub", "--bare", "--port", "0", cwd=tmp_path) as served:
            hub = Hub(served, token)
            wait_until(lambda: read_log(tmp_path)["end 1"] == 1, "the call in flight comes to its end")
            hub.ask("signal_run", run="mine", topic="answer", value=True)
            wait_until(lambda: hub.show()["status"] != "running", "the run ends")
            assert hub.show().get("output") == [1, 2, 3, 4, 5, 1], hub.show()
    log = read_log(tmp_path)
    assert [log[f"end {n}"] for n in range(5)] == [1] * 5
    assert [log[f"begin {n}"] for n in (0, 2, 3, 4)] == [1] * 4
    assert log["begin 1"] in (1, 2)
    assert log["note 1"] == 1


@pytest.mark.timeout(600)
def test_a_worker_without_the_code_of_a_run_passes_it_on(tmp_path: Path, retinue_home: Path) -> None:
    """It takes the run of a killed hub over; a worker that is started with the file executes it."""
    (tmp_path / "worker.py").write_text(GATED_WORKER)
    (tmp_path / "flows.py").write_text(FLOWS)
    settings = tmp_path / "retinue.toml"
    settings.write_text(f"{SETTINGS}[runs]\nlease_s = 3\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "retinue.toml").write_text("[runs]\nlease_s = 3\n")
    with program("serve", "worker.py", cwd=tmp_path) as agent:
        agent.wait_for("published")
        token = (retinue_home / "keys" / "local.token").read_text()
        with program("hub", "--bare", "--port", "0", cwd=tmp_path) as served:
            hub = Hub(served, token)
            hub.ask("start_run", workflow="five", input={"start": 0}, run="mine")
            hub.ask("signal_run", run="mine", topic="answer", value=True)
            wait_until(lambda: read_log(tmp_path)["begin 1"] == 1, "the first of three calls begins")
            hub.kill()
        with program("worker", cwd=elsewhere) as without:
            without.wait_for("run waits for its code")
            (tmp_path / "go").touch()
            with program("worker", "../flows.py", cwd=elsewhere):
                without.wait_for("run passed on")
                wait_until(lambda: read_log(tmp_path)["end 4"] == 1, "the run comes to its end")


@pytest.mark.timeout(600)
def test_a_hub_lists_and_starts_the_workflows_of_a_worker_and_says_when_it_is_missing(
    tmp_path: Path, retinue_home: Path, database: str
) -> None:
    (tmp_path / "worker.py").write_text(GATED_WORKER)
    (tmp_path / "flows.py").write_text(FLOWS)
    (tmp_path / "retinue.toml").write_text(f'database = "{database}"\n[runs]\nlease_s = 3\n')
    with program("serve", "worker.py", cwd=tmp_path) as agent:
        agent.wait_for("published")
        token = (retinue_home / "keys" / "local.token").read_text()
        with program("hub", "--bare", "--port", "0", cwd=tmp_path) as served:
            hub = Hub(served, token)
            with program("worker", "flows.py", cwd=tmp_path) as worker:
                wait_until(lambda: "five" in hub.list_custom(), "the hub lists the workflow of the worker")
                hub.ask("start_run", workflow="five", input={"start": 0}, run="mine")
                wait_until(lambda: read_log(tmp_path)["begin 1"] == 1, "the first of three calls begins")
                worker.send(signal.SIGKILL)
                worker.wait()
            wait_until(lambda: "missing_code" in hub.show(), "the hub says that the code is missing")
            missing = hub.show()["missing_code"]
            assert missing.startswith("flows.py:five (sha256:")
            assert missing.endswith("start one with the file: retinue worker flows.py")
            assert "five" not in hub.list_custom()
            (tmp_path / "go").touch()
            with program("worker", "flows.py", cwd=tmp_path):
                hub.ask("signal_run", run="mine", topic="answer", value=True)
                wait_until(lambda: hub.show()["status"] != "running", "the run ends at the new worker")
                assert hub.show().get("output") == [1, 2, 3, 4, 5, 1], hub.show()
    log = read_log(tmp_path)
    assert [log[f"end {n}"] for n in range(5)] == [1] * 5
    assert log["note 1"] == 1
