"""Child processes that answer lines: kept, replaced when they die, never left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import orjson
import pytest

from retinue.processes.line_workers import LineWorkers, WorkerEndedError
from tests.processes.running import is_running, wait_until

MODULE = "retinue.workflows.expressions.evaluator"


@pytest.fixture
def workers() -> Iterator[LineWorkers]:
    made = LineWorkers(MODULE, keep=1)
    yield made
    made.close()


def ask(workers: LineWorkers, source: str, given: object = None) -> object:
    variables = {"input": given, "steps": {}, "loop": {}}
    return orjson.loads(workers.ask(orjson.dumps([source, variables]))).get("value")


def test_a_process_is_kept_and_one_that_died_is_replaced(workers: LineWorkers) -> None:
    assert ask(workers, "input + 1", 1) == 2
    first = workers.idle[0]
    assert ask(workers, "input + 2", 1) == 3
    assert workers.idle == (first,)
    first.kill()
    first.wait()
    assert ask(workers, "input + 3", 1) == 4
    second = workers.idle[0]
    assert second.pid != first.pid
    workers.close()
    assert second.returncode == 0


def test_no_more_are_kept_than_wanted_and_answers_are_not_mixed_up(workers: LineWorkers) -> None:
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda n: ask(workers, "input * 2", n), range(40)))
    assert found == [2 * n for n in range(40)]
    assert len(workers.idle) == 1


def test_a_process_that_takes_too_much_time_is_ended_and_only_that_one(workers: LineWorkers) -> None:
    with pytest.raises(WorkerEndedError) as caught:
        ask(workers, "input.matches('(a?){1000}b')", "a" * 1_000_000)
    assert caught.value.is_out_of_time
    assert workers.idle == ()
    assert ask(workers, "input", 1) == 1


def test_a_module_that_cannot_be_run_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(WorkerEndedError, match="status 1") as caught:
        LineWorkers("retinue.no_such_module", keep=1).ask(b"{}")
    assert not caught.value.is_out_of_time
    assert "no_such_module" in capfd.readouterr().err


def test_a_process_ends_with_its_parent() -> None:
    code = (
        "import os, signal\n"
        "from retinue.processes.line_workers import LineWorkers\n"
        f"workers = LineWorkers({MODULE!r}, keep=1)\n"
        """workers.ask(b'["1", {"input": 1, "steps": {}, "loop": {}}]')\n"""
        "print(workers.idle[0].pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: not is_running(int(done.stdout)), "the worker ends with its starter")
