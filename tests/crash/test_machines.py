"""Several machines: a hub is lost for good, and a worker with a state folder of its own ends its run.

What they share is the Postgres and what a join brought: the key of the mesh and the hub's registry.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.crash.postgres import Postgres
from tests.crash.test_nodes import finish_all, looking_at
from tests.processes.freezing import freeze
from tests.processes.running import WAIT_S, execute, program, wait_until

LEASE_S = 2.0
AGENT = '''
import asyncio
from pathlib import Path

from retinue import Agent, Context

agent = Agent("worker-agent", version="1.0.0")
HERE = Path(__file__).parent


def note(line: str) -> None:
    with (HERE / "log").open("a") as log:
        log.write(line + "\\n")


@agent.skill(runs_code=True)
async def work(n: int, ctx: Context) -> dict[str, int]:
    """Adds one; the second time it waits for a file named go."""
    note(f"begin {n} for {ctx.principal.id}")
    while n == 1 and not (HERE / "go").exists():
        await asyncio.sleep(0.02)
    note(f"end {n}")
    return {"n": n + 1}
'''
WORKFLOW = {
    "name": "three",
    "steps": [
        {"id": "a", "skill": "work", "with": {"n": 0}},
        {"id": "b", "skill": "work", "timeout": "1h"},
        {"id": "c", "skill": "work"},
    ],
}

pytestmark = pytest.mark.crash


def machine(tmp_path: Path, name: str, database: str) -> dict[str, str]:
    """The environment of one machine: a state folder of its own, and endpoints that want a token."""
    return {
        "RETINUE_HOME": str(tmp_path / name),
        "RETINUE_AUTH__ANONYMOUS": "false",
        "RETINUE_DATABASE": database,
        "RETINUE_RUNS__LEASE_S": str(LEASE_S),
    }


def new_token(*arguments: str, on: Mapping[str, str]) -> str:
    words = [sys.executable, "-m", "retinue", "token", "new", *arguments]
    environment = {**os.environ, **on}
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("is_answered", [False, True], ids=["cut-off", "answer-lost"])
async def test_a_run_of_a_hub_that_is_lost_for_good_ends_on_another_machine(
    postgres: Postgres, tmp_path: Path, is_answered: bool
) -> None:
    database = postgres.create_database()
    first, second, third = (machine(tmp_path, name, database) for name in ("first", "second", "third"))
    (tmp_path / "worker.py").write_text(AGENT)

    def log() -> list[str]:
        path = tmp_path / "log"
        return path.read_text().splitlines() if path.exists() else []

    with program("hub", "--bare", "--port", "0", cwd=tmp_path, environment=first) as hub:
        url = hub.url_in("hub at")
        join = {"RETINUE_JOIN": new_token("--join", on=first)}
        ci = new_token("--scope", "mesh", "--scope", "runs_code", "--name", "ci", on=first)
        serve = ("serve", "worker.py", "--join", url)
        with (
            program(*serve, cwd=tmp_path, environment=third | join) as agent,
            program("worker", "--join", url, cwd=tmp_path, environment=second | join) as early,
        ):
            agent.wait_for("published")
            early.wait_for("worker on")
            assert early.end() == 0
            # what the join brought was kept
            with program("worker", "--join", url, cwd=tmp_path, environment=second) as worker:
                worker.wait_for("worker on")
                asked = {"workflow": WORKFLOW, "input": {}, "run": "mine"}
                assert execute(url, "start_run", asked, ci)["result"]["run"] == "mine"
                wait_until(lambda: "begin 1 for token:ci" in log(), "the second step begins")
                if is_answered:
                    # the hub is there no more when the answer comes, and the agent cannot know it
                    freeze(hub.process.pid)
                    (tmp_path / "go").touch()
                    wait_until(lambda: "end 1" in log(), "the second step ends")
                hub.send(signal.SIGKILL)
                hub.wait()
                if not is_answered:
                    wait_until(lambda: sum("begin 1 " in line for line in log()) == 2, "it begins again")
                    (tmp_path / "go").touch()
                async with looking_at(database, tmp_path) as runs:
                    (record,) = await finish_all(runs, ["mine"], WAIT_S)
                    assert record.get() == {"n": 3}
                worker.wait_for("runs taken over")
    counted = Counter(log())
    assert [counted[f"end {n}"] for n in range(3)] == [1, 1, 1]
    # whoever carries it on calls for the one who began it, and is given the outcome that this one was owed
    assert [counted[f"begin {n} for token:ci"] for n in range(3)] == [1, 1 if is_answered else 2, 1]
    assert sum(counted.values()) == (6 if is_answered else 7)
