"""``retinue run FILE.py:NAME`` executes a workflow of the file in its own process."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.processes.commands import run_command
from tests.processes.running import execute, program, wait_until

FLOWS = """
from retinue import Run, workflow


def add(a: int, b: int) -> int:
    return a + b


@workflow(name="sum-up")
async def total(run: Run, numbers: list[int]) -> int:
    await run.log("begins", data={"n": len(numbers)})
    value = 0
    for number in numbers:
        value = await run.step(add, value, number)
    return value


@workflow
async def asks(run: Run) -> str:
    return await run.elicit("Who?", str)
"""


@pytest.mark.timeout(600)
def test_a_workflow_of_a_file_runs_without_a_hub_and_a_worker_goes_on_with_it(
    tmp_path: Path, retinue_home: Path
) -> None:
    (tmp_path / "flows.py").write_text(FLOWS)
    done = run_command("run", "flows.py:total", '{"numbers": [1, 2, 3]}', cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "6"), done.stderr
    assert done.stderr.splitlines()[0] == '  log: begins  {"n":3}'
    with program("run", "flows.py:asks", "--id", "mine", cwd=tmp_path) as running:
        running.wait_for("Who?")
        running.send(signal.SIGKILL)
        running.wait()
    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        url, token = hub.url_in("hub at"), (retinue_home / "keys" / "local.token").read_text()

        def show() -> dict[str, object]:
            shown: dict[str, object] = execute(url, "show_run", {"run": "mine"}, token)["result"]
            return shown

        wait_until(lambda: "missing_code" in show(), "the hub says that the code is missing")
        listed = run_command("runs", "mine", cwd=tmp_path)
        assert "waits for its code, flows.py:asks (sha256:" in listed.stdout
        assert listed.stdout.splitlines()[1].endswith("start one with the file: retinue worker flows.py")
        assert "waiting: its code" in run_command("runs", cwd=tmp_path).stdout
        with program("worker", "flows.py", cwd=tmp_path) as worker:
            worker.wait_for("worker on")
            assert run_command("signal", "mine", "answer", '"Ada"', cwd=tmp_path).returncode == 0
            wait_until(lambda: show()["status"] == "done", "the worker ends the run")
            assert show()["output"] == "Ada"
