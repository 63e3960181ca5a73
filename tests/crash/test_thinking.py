"""Loops of a model over real processes: hub, worker, the model's process and a tool's are killed and frozen.

The model makes three calls in each of six turns and answers the sum of their results. Each agent logs where
its calls begin and end, so the logs tell what was made twice.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from retinue.workflows.runs.records import RunRecord
from tests.crash.agents import AGENT, KeptAgents
from tests.crash.postgres import Postgres
from tests.crash.test_nodes import finish_all, looking_at
from tests.processes.freezing import freeze, list_databases
from tests.processes.running import Program, execute, program, wait_until
from tests.requirements import requirement

TURNS, TOOLS = 6, 3
SUM = sum(10 * turn + place + 1 for turn in range(TURNS) for place in range(TOOLS))
ENDS_WITHIN_S = 120.0
LEASE_S = 2.0

MODEL = (
    AGENT.format(name="thinker")
    + '''
import re

from retinue import Answer

USAGE = {"model": "scripted", "input_tokens": 100, "output_tokens": 10}


@agent.skill
async def complete(
    system: str,
    messages: list[dict],
    tools: list[dict] | None = None,
    tool_choice: str = "auto",
    output_schema: dict | None = None,
    max_tokens: int | None = None,
) -> Answer:
    """Replies to a conversation: three calls in each of six turns, then their sum."""
    turn = sum(message["role"] == "assistant" for message in messages)
    reach("begin complete", turn)
    await stay("complete", turn)
    calls = [
        {"id": f"c{place}", "name": "adder-agent__add", "arguments": {"n": 10 * turn + place}}
        for place in range(3 if turn < 6 else 0)
    ]
    texts = [
        part["text"]
        for message in messages
        if message["role"] == "tool"
        for result in message["results"]
        for part in result["content"]
    ]
    total = sum(int(n) for text in texts for n in re.findall(r'"n":(\\d+)', text))
    reply = {"text": "" if calls else str(total), "calls": calls, "finish": "calls" if calls else "stop"}
    reach("end complete", turn)
    return Answer({**reply, "model": "scripted", "provider": "test"}, usage=USAGE)
'''
)

TOOL = (
    AGENT.format(name="adder")
    + '''

@agent.skill
async def add(n: int) -> dict[str, int]:
    """Adds one to a number."""
    reach("begin add", n)
    await stay("add", n)
    reach("end add", n)
    return {"n": n + 1}
'''
)

FLOW = {
    "name": "sum",
    "steps": [{"id": "t", "think": {"prompt": "Add", "model": "thinker-agent", "tools": ["adder-agent/*"]}}],
}

MODEL_POINTS = [f"{what} complete {turn}" for turn in range(TURNS + 1) for what in ("begin", "end")]
TOOL_POINTS = [
    f"{what} add {10 * turn + place}"
    for turn in range(TURNS)
    for place in range(TOOLS)
    for what in ("begin", "end")
]


class ThinkingAgents(KeptAgents):
    """A model and a tool; each dies, or stays, at the points that a test asks for."""

    def __init__(
        self, folder: Path, away_s: float = 0.5, texts: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        super().__init__(folder, {"thinker": MODEL, "adder": TOOL, **texts}, away_s)
        self._seen = 0

    def die_at(self, point: str) -> None:
        """Let the agent die at ``begin SKILL N`` or ``end SKILL N``, once."""
        (self.folder / f"die {point}").touch()

    def stay_at(self, call: str) -> Path:
        """Let the call ``SKILL N`` stay in its midst until the file that is returned has gone."""
        path = self.folder / f"stay {call}"
        path.touch()
        return path

    def has_passed(self, point: str) -> bool:
        """Whether a point was passed since the last look."""
        return point in self.read_log()[self._seen :]

    def take_log(self) -> Counter[str]:
        """How often each point was passed since the last look."""
        lines = self.read_log()[self._seen :]
        self._seen += len(lines)
        return Counter(lines)


@contextmanager
def running(tmp_path: Path) -> Iterator[ThinkingAgents]:
    agents = ThinkingAgents(tmp_path / "agents")
    try:
        agents.start()
        yield agents
    finally:
        agents.close()


def check_journal(home: Path) -> None:
    """The files of the database do not hold the token of the caller."""
    token = (home / "keys" / "local.token").read_text().strip().encode()
    files = list(home.glob("runs.db*"))
    assert files
    assert all(token not in file.read_bytes() for file in files)


def start_run(hub: Program, home: Path, run: str) -> None:
    token = (home / "keys" / "local.token").read_text()
    started = execute(hub.url_in("hub at"), "start_run", {"workflow": FLOW, "run": run}, token)
    assert started["result"]["run"] == run, started


async def end_run(database: str, folder: Path, run: str) -> RunRecord:
    async with looking_at(database, folder) as runs:
        (record,) = await finish_all(runs, [run], ENDS_WITHIN_S)
        steps = [step.step for step in await runs.list_steps(run)]
    assert len(steps) == len(set(steps))
    plain = {re.sub(r"(@\d+|/again)+$", "", step) for step in steps}
    assert len(plain) == 1 + (TURNS + 1) + TURNS * TOOLS
    return record


def check_calls(passed: Counter[str], *, repeated: int) -> None:
    """Every request and call was made, and at most ``repeated`` of them came to their end twice."""
    ends = {point: count for point, count in passed.items() if point.startswith("end ")}
    assert set(ends) == {point for point in (*MODEL_POINTS, *TOOL_POINTS) if point.startswith("end ")}
    twice = [point for point, count in ends.items() if count > 1]
    assert len(twice) <= repeated, twice
    assert max(ends.values()) <= 1 + repeated


@pytest.fixture
def hub_arguments() -> tuple[str, ...]:
    return ("hub", "--bare", "--port", "0")


@requirement("T-01")
@requirement("T-03")
@pytest.mark.timeout(600)
async def test_a_loop_ends_as_undisturbed_whoever_of_its_processes_is_killed(
    tmp_path: Path, retinue_home: Path, hub_arguments: tuple[str, ...]
) -> None:
    """The model's process, the tool's, the hub, and the worker that took over: each once in one run."""
    database = f"sqlite:///{retinue_home}/runs.db"
    with running(tmp_path) as agents:
        agents.die_at("begin complete 1")
        agents.die_at("end add 11")
        in_hub, in_worker = agents.stay_at("add 31"), agents.stay_at("complete 5")
        with program(*hub_arguments, cwd=tmp_path) as hub:
            start_run(hub, retinue_home, "r")
            wait_until(lambda: "begin add 31" in agents.read_log(), "the fourth turn begins")
            hub.send(signal.SIGKILL)
            hub.wait()
        with program("worker", cwd=tmp_path) as worker:
            worker.wait_for("worker on")
            in_hub.unlink()
            wait_until(lambda: "begin complete 5" in agents.read_log(), "the sixth turn begins")
            worker.send(signal.SIGKILL)
            worker.wait()
        in_worker.unlink()
        with program(*hub_arguments, cwd=tmp_path) as hub:
            hub.url_in("hub at")
            record = await end_run(database, tmp_path, "r")
            token = (retinue_home / "keys" / "local.token").read_text()
            shown = execute(hub.url_in("hub at"), "show_run", {"run": "r"}, token)["result"]
        assert record.get() == str(SUM)
        assert agents.kills == 2
        # exact to the token for what was recorded
        assert shown["usage"]["input_tokens"] == 100 * (TURNS + 1)
        assert shown["usage"]["output_tokens"] == 10 * (TURNS + 1)
        check_calls(agents.take_log(), repeated=4)


@requirement("T-09")
@pytest.mark.timeout(600)
async def test_a_frozen_hub_loses_its_loop_to_a_worker_and_repeats_nothing_when_it_thaws(
    tmp_path: Path, retinue_home: Path, hub_arguments: tuple[str, ...]
) -> None:
    """The journal has no token of the caller."""
    lease = {"RETINUE_RUNS__LEASE_S": str(LEASE_S)}
    with running(tmp_path) as agents:
        stays = agents.stay_at("add 21")
        with program(*hub_arguments, cwd=tmp_path, environment=lease) as hub:
            start_run(hub, retinue_home, "r")
            wait_until(lambda: "begin add 21" in agents.read_log(), "the third turn begins")
            with program("worker", cwd=tmp_path, environment=lease) as worker:
                worker.wait_for("worker on")
                freeze(hub.process.pid, list_databases(retinue_home))
                stays.unlink()
                record = await end_run(f"sqlite:///{retinue_home}/runs.db", tmp_path, "r")
                hub.send(signal.SIGCONT)
                assert record.get() == str(SUM)
                assert worker.end(signal.SIGTERM) == 0
        check_calls(agents.take_log(), repeated=1)
    check_journal(retinue_home)


@pytest.mark.crash
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("points", [MODEL_POINTS, TOOL_POINTS], ids=["model", "tool"])
@pytest.mark.parametrize("storage", ["sqlite", "postgres"])
async def test_a_loop_ends_as_undisturbed_wherever_an_agent_is_killed(
    points: list[str],
    storage: str,
    tmp_path: Path,
    retinue_home: Path,
    hub_arguments: tuple[str, ...],
    request: pytest.FixtureRequest,
) -> None:
    database, environment = open_storage(storage, retinue_home, request)
    with running(tmp_path) as agents, program(*hub_arguments, cwd=tmp_path, environment=environment) as hub:
        for number, point in enumerate(points):
            agents.die_at(point)
            await asyncio.to_thread(start_run, hub, retinue_home, f"r-{number}")
            record = await end_run(database, tmp_path, f"r-{number}")
            assert record.get() == str(SUM), point
            assert agents.kills == number + 1, point
            check_calls(agents.take_log(), repeated=TOOLS)


@pytest.mark.crash
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("storage", ["sqlite", "postgres"])
async def test_a_loop_ends_as_undisturbed_in_whichever_call_the_hub_is_killed(
    storage: str,
    tmp_path: Path,
    retinue_home: Path,
    hub_arguments: tuple[str, ...],
    request: pytest.FixtureRequest,
) -> None:
    database, environment = open_storage(storage, retinue_home, request)
    requests = [f"complete {turn}" for turn in range(TURNS + 1)]
    calls = [f"add {10 * turn + turn % TOOLS}" for turn in range(TURNS)]
    with running(tmp_path) as agents:
        for number, call in enumerate([*requests, *calls]):
            stays = agents.stay_at(call)
            with program(*hub_arguments, cwd=tmp_path, environment=environment) as hub:
                start_run(hub, retinue_home, f"r-{number}")
                wait_until(partial(agents.has_passed, f"begin {call}"), call)
                hub.send(signal.SIGKILL)
                hub.wait()
            stays.unlink()
            with program(*hub_arguments, cwd=tmp_path, environment=environment) as hub:
                hub.url_in("hub at")
                record = await end_run(database, tmp_path, f"r-{number}")
            assert record.get() == str(SUM), call
            check_calls(agents.take_log(), repeated=1)


def open_storage(storage: str, home: Path, request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """The database of the runs, and the variables with which a program uses it."""
    if storage == "sqlite":
        return f"sqlite:///{home}/runs.db", {}
    server: Postgres = request.getfixturevalue("postgres")
    database = server.create_database()
    return database, {"RETINUE_DATABASE": database, "RETINUE_RUNS__LEASE_S": str(LEASE_S)}
