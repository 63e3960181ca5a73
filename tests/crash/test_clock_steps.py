"""The clock of a machine is set while hub, worker and agents run: calls, steps and leases go on.

libfaketime sets the clock of the processes of a test; the monotonic clock goes on, as on a real machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import urllib3
from sqlalchemy import Engine, create_engine, text

from tests.processes.running import Program, execute, program, wait_until
from tests.services import get_library

STEPS = ("-2m", "-62m", "-2m", "+58m")
"""The clock against the real time, one after the other: steps of −2 min, −1 h, +1 h, +1 h."""

LEASE_S = 8
"""Longer than a busy machine keeps a process from running: a lease that ends so is rightly taken over."""

AGENT = """
import asyncio, os
from retinue import Agent

agent = Agent("count-agent")
file = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@agent.skill
async def count(key: str, pause_s: float = 0.0) -> str:
    await asyncio.sleep(pause_s)
    os.write(file, (key + chr(10)).encode())
    return key


@agent.skill
async def relay(key: str, ctx) -> str:
    return await ctx.call("count", {{"key": key}})
"""

CONFIGURATION = """
database = {database!r}

[[agents]]
target = {target!r}
env = "inherit"  # the agent is on the same machine, so its clock is set too

[runs]
lease_s = {lease_s}
"""

WORKFLOW = {
    "name": "long",
    "settings": {"max_duration": "5m"},
    "steps": [
        {"id": "first", "skill": "count", "with": {"key": "${{ input.run }} first"}},
        {"id": "go", "wait_for": {"topic": "go", "timeout": "10m"}},
        {"id": "slow", "skill": "count", "with": {"key": "${{ input.run }} slow", "pause_s": 1.0}},
        {
            "id": "each",
            "foreach": "${{ [1, 2, 3] }}",
            "steps": [
                {
                    "id": "one",
                    "skill": "count",
                    "with": {"key": "${{ input.run }} ${{ loop.item }}", "pause_s": 0.5},
                }
            ],
        },
    ],
}


SLEEP = """
import select
import time

time.sleep = lambda seconds: select.select([], [], [], seconds) and None
"""
"""libfaketime refuses every clock_nanosleep while it leaves the monotonic clock alone: `time.sleep` raises
OSError (EINVAL), and with it whatever waits before it tries again, such as the engine for a locked table."""


class Clock:
    """The clock of the processes of a test."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.set("+0")
        (folder / "startup").mkdir()
        (folder / "startup" / "sitecustomize.py").write_text(SLEEP)
        self.environment = {
            "LD_PRELOAD": get_library("faketime/libfaketime.so.1"),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "PYTHONPATH": str(folder / "startup"),
        }

    def set(self, against_real_time: str) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(f"{against_real_time}\n")
        new.replace(self._file)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path)


def test_a_process_whose_clock_is_set_sleeps_as_long_as_it_asks(clock: Clock) -> None:
    """Otherwise the tests below would try the library and not the product."""
    program = "import time; began = time.monotonic(); time.sleep(0.2); print(time.monotonic() - began)"
    for step in STEPS:
        clock.set(step)
        ended = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **clock.environment},
            capture_output=True,
            text=True,
            check=True,
        )
        assert float(ended.stdout) >= 0.2, ended.stderr


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def hub(tmp_path: Path, database: str, clock: Clock, log: Path) -> Iterator[Program]:
    agent = tmp_path / "count_agent.py"
    agent.write_text(AGENT.format(log=str(log)))
    configuration = CONFIGURATION.format(target=str(agent), lease_s=LEASE_S, database=database)
    (tmp_path / "retinue.toml").write_text(configuration)
    with program("hub", "--bare", "--port", "0", cwd=tmp_path, environment=clock.environment) as hub:
        url = hub.url_in("hub at")
        wait_until(lambda: execute(url, "count", {"key": "up"}).get("result") == "up", "the agent answers")
        wait_until(lambda: can_start(url), "the first run starts", limit_s=120)
        yield hub


def can_start(url: str) -> bool:
    """The first run loads the engine, which takes longer than a request may on a busy machine."""
    workflow = {"name": "first", "steps": [{"id": "first", "skill": "count", "with": {"key": "first"}}]}
    with suppress(urllib3.exceptions.TimeoutError):
        return "result" in execute(url, "start_run", {"workflow": workflow, "run": "first"})
    return False


def ask(url: str, skill: str, **arguments: Any) -> Any:
    reply = execute(url, skill, arguments)
    assert "error" not in reply, json.dumps(reply)
    return reply["result"]


def start_run(url: str, run: str) -> None:
    ask(url, "start_run", workflow=WORKFLOW, input={"run": run}, run=run)
    wait_until(lambda: is_waiting(url, run), "the run waits")


def is_waiting(url: str, run: str) -> bool:
    return any(one["status"] == "waiting" for one in ask(url, "show_run", run=run)["steps"])


def await_end(url: str, run: str) -> dict[str, Any]:
    after: dict[str, Any] = {}
    wait_until(lambda: after.update(ask(url, "show_run", run=run)) or after["status"] != "running", "its end")
    return after


def expected(run: str) -> list[str]:
    return sorted(f"{run} {key}" for key in ("first", "slow", "1", "2", "3"))


def read_log(log: Path, run: str) -> list[str]:
    return sorted(line for line in log.read_text().splitlines() if line.startswith(f"{run} "))


def test_calls_and_runs_go_on_when_the_clock_is_set(hub: Program, clock: Clock, log: Path) -> None:
    """Through the hub, and from agent to agent: tokens, signatures and time limits."""
    url = hub.url_in("hub at")
    # Loading the engine may take longer than the lease on a busy machine.
    lost_at_start = hub.output.count("lease was lost")
    for number, step in enumerate(STEPS):
        ask(url, "relay", key="before")
        start_run(url, f"run-{number}")
        clock.set(step)
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            assert ask(url, "count", key="after") == "after"
            assert ask(url, "relay", key="after") == "after"
        ask(url, "signal_run", run=f"run-{number}", topic="go", value=1)
        shown = await_end(url, f"run-{number}")
        assert shown["status"] == "done", shown
        assert read_log(log, f"run-{number}") == expected(f"run-{number}")
    assert "refused the caller" not in hub.output
    assert hub.output.count("lease was lost") == lost_at_start


def read_leases(database: Engine) -> dict[str, Any]:
    table = "retinue_nodes" if database.name == "sqlite" else "retinue.nodes"
    with database.connect() as connection:
        rows = connection.execute(text(f"SELECT executor, expires FROM {table}"))
        return {row.executor: row.expires for row in rows}


def await_renewals(database: Engine) -> None:
    """Wait until both nodes have renewed their leases."""
    seen = read_leases(database)
    assert len(seen) == 2

    def are_renewed() -> bool:
        now = read_leases(database)
        assert now.keys() == seen.keys(), "a living node has lost its lease"
        return all(now[node] != at for node, at in seen.items())

    wait_until(are_renewed, "renewals")


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    opened = create_engine(database.replace("postgresql://", "postgresql+psycopg://"))
    yield opened
    opened.dispose()


@pytest.mark.parametrize("step", ["-1h", "-2m", "+1h"])
def test_living_nodes_are_kept_and_a_dead_one_is_found_when_the_clock_is_set(
    hub: Program, clock: Clock, log: Path, tmp_path: Path, engine: Engine, step: str
) -> None:
    """No lease of a living node ends by it, and that of a dead one lasts no longer."""
    url = hub.url_in("hub at")
    start_run(url, "lived")
    start_run(url, "left")
    with program("worker", cwd=tmp_path, environment=clock.environment) as worker:
        worker.wait_for("worker on")
        clock.set(step)
        for _ in range(4):
            await_renewals(engine)
        ask(url, "signal_run", run="lived", topic="go", value=1)
        shown = await_end(url, "lived")
        assert shown["status"] == "done", shown
        assert read_log(log, "lived") == expected("lived")
        assert "runs taken over" not in hub.output + worker.output

        hub.send(signal.SIGKILL)
        hub.wait()
        clock.set({"-1h": "-2h", "-2m": "-4m", "+1h": "+2h"}[step])
        worker.wait_for("runs taken over")
