"""The agents of a saga are killed before, in and after each of its calls, over HTTP: it ends all the same."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest

from retinue.workflows.runs.records import RunRecord
from tests.crash.agents import Agents, running_agents
from tests.crash.test_nodes import finish_all, looking_at
from tests.crash.test_random_kills import Starter
from tests.processes.running import Program, execute, program
from tests.requirements import requirement

SKILLS = ("reserve", "book", "pay", "unbook", "free")
POINTS = [
    f"{what} {skill}" for skill in SKILLS for what in ("begin", "end") if (what, skill) != ("end", "pay")
]
"""It declines before its end."""

DECLINED = 1
"""The number for which the payment is declined, so that all of it is undone."""

AWAY_S = (0.5, 3.0, 30.0)
SAGAS = 100
ENDS_WITHIN_S = 150.0


@pytest.fixture
def hub(tmp_path: Path, retinue_home: Path) -> Iterator[Program]:
    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as running:
        running.url_in("hub at")
        yield running


async def run_saga(agents: Agents, hub: Program, home: Path, name: str, n: int) -> RunRecord:
    token = (home / "keys" / "local.token").read_text()
    asked = {"workflow": agents.flow(), "input": {"n": n}, "run": name}
    started = await asyncio.to_thread(execute, hub.url_in("hub at"), "start_run", asked, token)
    assert started["result"]["run"] == name, started
    async with looking_at(f"sqlite:///{home}/runs.db", agents.folder) as runs:
        (record,) = await finish_all(runs, [name], ENDS_WITHIN_S)
    return record


def check_undone(agents: Agents, record: RunRecord, n: int) -> None:
    """The payment was declined, and nothing is left of what was done before."""
    assert record.status == "failed"
    assert record.fault is not None
    assert "declined" in record.fault.message, record.fault
    assert [one["ok"] for one in record.fault.data["compensated"]] == [True, True], record.fault
    assert not record.is_half_undone
    assert agents.list_left(n) == []
    # A call in whose midst its agent died is made again.
    assert all(1 <= agents.count_ends(n)[skill] <= 2 for skill in ("reserve", "book", "unbook", "free"))


@requirement("P-31")
@pytest.mark.timeout(600)
async def test_a_saga_is_undone_whose_agents_die_in_calls_and_come_back_after_half_a_second_and_later(
    tmp_path: Path, retinue_home: Path, hub: Program
) -> None:
    """One row of the matrix for each time, all at once."""
    rows = dict(zip(AWAY_S, ("end book", "begin free", "begin unbook"), strict=True))
    with ExitStack() as stack:
        sets = {
            away_s: Agents(tmp_path / f"set{number}", f"_{number}", away_s)
            for number, away_s in enumerate(rows)
        }
        for agents in sets.values():
            stack.callback(agents.close)
        await asyncio.gather(*(asyncio.to_thread(agents.start) for agents in sets.values()))

        async def run(away_s: float) -> None:
            agents = sets[away_s]
            agents.kill_at(rows[away_s], DECLINED)
            record = await run_saga(agents, hub, retinue_home, f"saga{agents.suffix}", DECLINED)
            check_undone(agents, record, DECLINED)
            assert agents.kills == 1

        await asyncio.gather(*(run(away_s) for away_s in rows))


@pytest.mark.crash
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("away_s", AWAY_S)
async def test_a_saga_is_undone_whichever_of_its_calls_kills_its_agent(
    away_s: float, tmp_path: Path, retinue_home: Path, hub: Program
) -> None:
    """The matrix: each point of each call, and each of the times after which the agent is back."""
    with running_agents(tmp_path / "set", "", away_s) as agents:
        for number, point in enumerate(POINTS):
            n = 2 * number + 1
            agents.kill_at(point, n)
            record = await run_saga(agents, hub, retinue_home, f"saga-{number}", n)
            check_undone(agents, record, n)
            assert agents.kills == number + 1, point
    print(f"{len(POINTS)} kills, away for {away_s} s: 0 sagas left half undone")


class Killer(threading.Thread):
    """Kills one agent after the other, at random, until it is closed."""

    def __init__(self, agents: Agents) -> None:
        super().__init__(daemon=True)
        self._agents = agents
        self._dice = random.Random(12)
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(self._dice.uniform(0.5, 3)):
            self._agents.kill(self._dice.choice(["reserve", "book", "pay"]))

    def close(self) -> None:
        self._stopped.set()
        self.join(10)


class Sagas(Starter):
    """Starts the sagas, asking for each until a hub has said that it has it."""

    def __init__(self, names: list[str], home: Path, flow: dict[str, Any]) -> None:
        super().__init__(names, home)
        self._flow = flow

    def ask_of(self, number: int, name: str) -> dict[str, Any]:
        return {"workflow": self._flow, "input": {"n": number}, "run": name}


@pytest.mark.crash
@pytest.mark.timeout(900)
async def test_of_a_hundred_sagas_whose_agents_and_hub_are_killed_at_random_none_is_left_half_undone(
    tmp_path: Path, retinue_home: Path
) -> None:
    names = [f"saga-{number}" for number in range(SAGAS)]
    hub_arguments = ("hub", "--bare", "--port", "0")
    with running_agents(tmp_path / "set", "", 1.5) as agents:
        starter, killer = Sagas(names, retinue_home, agents.flow(timeout="5m")), Killer(agents)
        starter.start()
        killer.start()
        hub_kills = 0
        try:
            while starter.is_alive():
                with program(*hub_arguments, cwd=tmp_path) as running:
                    running.wait_for("hub at")
                    await asyncio.to_thread(starter.join, 12)
                    running.send(signal.SIGKILL)
                    running.wait()
                hub_kills += 1
            killer.close()
            with program(*hub_arguments, cwd=tmp_path) as running:
                running.wait_for("hub at")
                async with looking_at(f"sqlite:///{retinue_home}/runs.db", tmp_path) as runs:
                    records = await finish_all(runs, names, 400)
        finally:
            starter.close()
            killer.close()
    half = [record.id for record in records if record.is_half_undone]
    left = {n: agents.list_left(n) for n in range(SAGAS) if n % 2}
    print(
        f"{SAGAS} sagas, {agents.kills} kills of agents, {hub_kills} of the hub: "
        f"{sum(record.status == 'done' for record in records)} done, {len(half)} left half undone"
    )
    assert half == []
    assert [n for n, found in left.items() if found] == []
    assert [record.status for record in records] == ["done", "failed"] * (SAGAS // 2), [
        orjson.dumps(record.fault.data) for record in records[::2] if record.fault
    ]
