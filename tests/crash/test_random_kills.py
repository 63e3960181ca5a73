"""A hub that is killed at random, again and again, while an agent that lives does what its runs ask for."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import orjson
import pytest
import urllib3

from tests.crash.postgres import Postgres
from tests.crash.test_nodes import finish_all, looking_at
from tests.processes.running import execute, program

AGENT = '''
import asyncio
import random
from pathlib import Path

from retinue import Agent, Context

agent = Agent("worker-agent", version="1.0.0")
HERE = Path(__file__).parent


def log(what: str, key: str | None) -> None:
    with (HERE / "log").open("a") as file:
        file.write(f"{what} {key}\\n")


@agent.skill
async def work(n: int, context: Context) -> dict[str, int]:
    """Adds one, in its own time; says when it begins and when it has done so."""
    log("begin", context.idempotency_key)
    await asyncio.sleep(random.uniform(0.05, 1.0))
    log("end", context.idempotency_key)
    return {"n": n + 1}
'''

FLOW = {
    "name": "five",
    "steps": [
        {"id": "a", "skill": "work", "with": {"n": "${{ input.n }}"}},
        {
            "id": "p",
            "parallel": {},
            "branches": {
                "left": [{"id": "b", "skill": "work"}],
                "right": [{"id": "c", "skill": "work"}, {"id": "d", "skill": "work"}],
            },
        },
        {
            "id": "e",
            "skill": "work",
            "with": {"n": "${{ steps.p.output.left.n + steps.p.output.right.n }}"},
        },
    ],
}
CALLS = 5
RUNS = 40
KILLS = 12
PACE_S = 0.5


class Starter(threading.Thread):
    """Starts the runs, two a second, asking for each until a hub has said that it has it."""

    def __init__(self, names: list[str], home: Path) -> None:
        super().__init__(daemon=True)
        self.asked = 0
        self._names = names
        self._home = home
        self._stopped = threading.Event()

    def run(self) -> None:
        token = (self._home / "keys" / "local.token").read_text()
        for number, name in enumerate(self._names):
            asked = self.ask_of(number, name)
            while not self._stopped.is_set() and not self._ask(asked, token):
                self._stopped.wait(0.1)
            self._stopped.wait(PACE_S)

    def ask_of(self, number: int, name: str) -> dict[str, Any]:
        """What a run is started with."""
        return {"workflow": FLOW, "input": {"n": number}, "run": name}

    def close(self) -> None:
        self._stopped.set()
        self.join(30)

    def _ask(self, asked: dict[str, Any], token: str) -> bool:
        self.asked += 1
        try:
            url = orjson.loads((self._home / "hub.json").read_bytes())["url"]
            reply = execute(url, "start_run", asked, token)
        except (OSError, ValueError, urllib3.exceptions.HTTPError):
            return False
        return bool(reply.get("result", {}).get("run") == asked["run"])


@pytest.mark.crash
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_hub_killed_at_random_completes_each_effect_of_each_run_once(
    kind: str, tmp_path: Path, retinue_home: Path, request: pytest.FixtureRequest
) -> None:
    """Forty runs of five calls; the agent is never killed: each of the two hundred effects happens once."""
    given: list[str] = []
    database = f"sqlite:///{retinue_home}/runs.db"
    if kind == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        database = server.create_database()
        given = ["--database", database]
    (tmp_path / "worker.py").write_text(AGENT)
    dice, kills = random.Random(6), 0
    names = [f"run-{number}" for number in range(RUNS)]
    hub_arguments = ("hub", "--bare", "--port", "0", *given)
    with program("serve", "worker.py", cwd=tmp_path) as served:
        served.wait_for("published")
        starter = Starter(names, retinue_home)
        starter.start()
        try:
            while kills < KILLS:
                with program(*hub_arguments, cwd=tmp_path) as hub:
                    if dice.random() < 0.8:  # else it may die while it starts
                        hub.wait_for("hub at")
                    time.sleep(dice.uniform(0.3, 4))  # noqa: ASYNC251  # the hub is a process of its own
                    hub.send(signal.SIGKILL)
                    hub.wait()
                kills += 1
            with program(*hub_arguments, cwd=tmp_path) as hub:
                hub.wait_for("hub at")
                await asyncio.to_thread(starter.join, 120)
                async with looking_at(database, tmp_path) as runs:
                    records = await finish_all(runs, names, 150)
                    assert [record.get() for record in records] == [{"n": 2 * n + 6} for n in range(RUNS)]
                    events = [event for name in names for event in await runs.list_events(name)]
        finally:
            starter.close()
    ends = Counter(event.run_id for event in events if event.kind == "run_finished")
    assert set(ends.values()) == {1}
    done: defaultdict[str, Counter[str]] = defaultdict(Counter)
    begun = Counter[str]()
    for line in (tmp_path / "log").read_text().splitlines():
        what, key = line.split(" ", 1)
        begun[key] += what == "begin"
        done[key.partition("/")[0]][key] += what == "end"
    print(f"{kills} kills, {starter.asked} times asked, {sum(begun.values()) - len(begun)} begun again")
    for name in names:
        assert sorted(done[name].values()) == [1] * CALLS, done[name]
