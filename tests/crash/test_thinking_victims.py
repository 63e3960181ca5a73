"""The loops of `test_thinking`, with each kind of process killed or frozen in each turn."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from retinue.workflows.runs.records import RunRecord
from tests.crash.test_nodes import finish_all, looking_at
from tests.crash.test_thinking import (
    LEASE_S,
    SUM,
    TOOLS,
    TURNS,
    ThinkingAgents,
    check_calls,
    end_run,
    open_storage,
    running,
    start_run,
)
from tests.processes.freezing import freeze, list_databases
from tests.processes.running import Program, program, wait_until
from tests.requirements import requirement

HUB = ("hub", "--bare", "--port", "0")
REQUESTS = [f"complete {turn}" for turn in range(TURNS + 1)]
CALLS = [f"add {10 * turn + turn % TOOLS}" for turn in range(TURNS)]
FROZEN_S = 3.0
"""Longer than the lease of a node."""
AT_ONCE = 50

pytestmark = pytest.mark.crash


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes of these tests notice soon that another one was lost."""
    monkeypatch.setenv("RETINUE_RUNS__LEASE_S", str(LEASE_S))


@contextmanager
def thinking_hub(tmp_path: Path, environment: dict[str, Any]) -> Iterator[Program]:
    with program(*HUB, cwd=tmp_path, environment=environment) as hub:
        hub.url_in("hub at")
        yield hub


def check_run(record: RunRecord, agents: ThinkingAgents, point: str, *, repeated: int) -> None:
    """The answer is that of an undisturbed run, and the tokens are exact."""
    assert record.get() == str(SUM), point
    assert record.usage is not None
    assert record.usage["input_tokens"] == 100 * (TURNS + 1), point
    assert record.usage["output_tokens"] == 10 * (TURNS + 1), point
    check_calls(agents.take_log(), repeated=repeated)


@requirement("T-03")
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("storage", ["sqlite", "postgres"])
async def test_a_loop_ends_as_undisturbed_in_whichever_call_its_worker_is_killed(
    storage: str, tmp_path: Path, retinue_home: Path, request: pytest.FixtureRequest
) -> None:
    database, environment = open_storage(storage, retinue_home, request)
    with running(tmp_path) as agents:
        for number, call in enumerate([*REQUESTS[1:], *CALLS[1:]]):
            first, stays = agents.stay_at("complete 0"), agents.stay_at(call)
            with thinking_hub(tmp_path, environment) as hub:
                start_run(hub, retinue_home, f"r-{number}")
                wait_until(partial(agents.has_passed, "begin complete 0"), "the first request")
                hub.send(signal.SIGKILL)
                hub.wait()
            with program("worker", cwd=tmp_path, environment=environment) as worker:
                first.unlink()
                wait_until(partial(agents.has_passed, f"begin {call}"), call)
                worker.send(signal.SIGKILL)
                worker.wait()
            stays.unlink()
            with thinking_hub(tmp_path, environment):
                record = await end_run(database, tmp_path, f"r-{number}")
            check_run(record, agents, call, repeated=2)


@requirement("T-09")
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("storage", ["sqlite", "postgres"])
async def test_a_loop_ends_as_undisturbed_in_whichever_call_its_hub_is_frozen(
    storage: str, tmp_path: Path, retinue_home: Path, request: pytest.FixtureRequest
) -> None:
    """A worker goes on; the hub repeats nothing when it thaws."""
    database, environment = open_storage(storage, retinue_home, request)
    with running(tmp_path) as agents:
        for number, call in enumerate([*REQUESTS, *CALLS]):
            stays = agents.stay_at(call)
            with thinking_hub(tmp_path, environment) as hub:
                start_run(hub, retinue_home, f"r-{number}")
                wait_until(partial(agents.has_passed, f"begin {call}"), call)
                with program("worker", cwd=tmp_path, environment=environment) as worker:
                    worker.wait_for("worker on")
                    freeze(hub.process.pid, list_databases(retinue_home))
                    stays.unlink()
                    record = await end_run(database, tmp_path, f"r-{number}")
                    hub.send(signal.SIGCONT)
                    assert worker.end(signal.SIGTERM) == 0
            check_run(record, agents, call, repeated=1)


@requirement("T-01")
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("storage", ["sqlite", "postgres"])
async def test_a_loop_waits_for_whichever_agent_is_frozen_and_repeats_nothing(
    storage: str, tmp_path: Path, retinue_home: Path, request: pytest.FixtureRequest
) -> None:
    database, environment = open_storage(storage, retinue_home, request)
    with running(tmp_path) as agents, thinking_hub(tmp_path, environment) as hub:
        for number, call in enumerate([*REQUESTS, *CALLS]):
            victim = "thinker" if call in REQUESTS else "adder"
            stays = agents.stay_at(call)
            await asyncio.to_thread(start_run, hub, retinue_home, f"r-{number}")
            wait_until(partial(agents.has_passed, f"begin {call}"), call)
            agents.freeze(victim)
            stays.unlink()
            async with looking_at(database, tmp_path) as runs:
                with pytest.raises(TimeoutError):
                    await finish_all(runs, [f"r-{number}"], FROZEN_S)
                agents.send(victim, signal.SIGCONT)
                record = await end_run(database, tmp_path, f"r-{number}")
            check_run(record, agents, call, repeated=0)


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("storage", ["sqlite", "postgres"])
async def test_fifty_loops_at_once_end_as_undisturbed_when_their_hub_is_killed(
    storage: str, tmp_path: Path, retinue_home: Path, request: pytest.FixtureRequest
) -> None:
    database, environment = open_storage(storage, retinue_home, request)
    names = [f"r-{number}" for number in range(AT_ONCE)]
    with running(tmp_path) as agents:
        with thinking_hub(tmp_path, environment) as hub:
            for name in names:
                start_run(hub, retinue_home, name)
            wait_until(partial(agents.has_passed, "end add 31"), "the fourth turn of a loop", limit_s=120)
            hub.send(signal.SIGKILL)
            hub.wait()
        with thinking_hub(tmp_path, environment):
            async with looking_at(database, tmp_path) as runs:
                records = await finish_all(runs, names, 600)
        passed = agents.take_log()
    for record in records:
        assert record.get() == str(SUM), record.id
        assert record.usage is not None
        assert record.usage["input_tokens"] == 100 * (TURNS + 1), record.id
    for turn in range(TURNS + 1):
        # in each loop that was in a request when the hub died, that request is made again
        assert AT_ONCE <= passed[f"end complete {turn}"] <= 2 * AT_ONCE
    again = sum(count for point, count in passed.items() if point.startswith("end "))
    again -= AT_ONCE * (TURNS + 1 + TURNS * TOOLS)
    assert again <= AT_ONCE * TOOLS, passed
