"""The programs themselves: a hub, a worker and a hub-less run are killed, and what they ran goes on."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retinue.workflows.durable.runs import DurableRuns
from retinue.workflows.runs.ports import RunContext
from retinue.workflows.runs.records import RunRecord, RunRequest
from tests.crash.agents import GATED_WORKER
from tests.ports import reserve_port
from tests.processes.running import WAIT_S, Program, execute, program, wait_until

FLOW = """
name: three
steps:
  - {id: a, skill: work, with: {n: 0}}
  - {id: b, skill: work, timeout: 1h}
  - {id: c, skill: work}
"""

EVENT_WITHIN_S = 100.0
"""How long one step may take: writing the tests of a module on a busy machine."""


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Program]:
    (tmp_path / "worker.py").write_text(GATED_WORKER)
    (tmp_path / "flow.yaml").write_text(FLOW)
    # Another test may give a port that the killed agent leaves to an agent of the same name in another mesh.
    with program("serve", "worker.py", "--port", str(reserve_port()), cwd=tmp_path) as served:
        served.wait_for("published")
        yield served


def read_log(tmp_path: Path) -> list[str]:
    path = tmp_path / "log"
    return path.read_text().splitlines() if path.exists() else []


def watch_runs(home: Path) -> DurableRuns:
    """The runs of a state folder, as a process sees them that takes no part."""

    async def body(context: RunContext, request: RunRequest) -> Any:
        raise AssertionError("this process runs nothing")

    return DurableRuns(body, url=f"sqlite:///{home}/runs.db", nodes=home / "nodes")


async def finish_only_run(home: Path) -> RunRecord:
    """The one run of a state folder when it has ended."""
    runs = watch_runs(home)
    try:
        (found,) = await runs.list_all()
        async with asyncio.timeout(WAIT_S):
            return await runs.finish(found.id)
    finally:
        await runs.aclose()


async def follow_only_run(home: Path) -> RunRecord:
    """The one run of a state folder when it has ended; it may take long, but no event may."""
    runs = watch_runs(home)
    try:
        (found,) = await runs.list_all()
        async with asyncio.timeout(EVENT_WITHIN_S) as limit:
            async for _ in runs.follow(found.id):
                limit.reschedule(asyncio.get_running_loop().time() + EVENT_WITHIN_S)
        return await runs.finish(found.id)
    finally:
        await runs.aclose()


def check_effects(tmp_path: Path) -> None:
    """Each step was carried out once: the one in flight was cut off with its caller, or its outcome kept."""
    log = Counter(read_log(tmp_path))
    assert [log[f"end {n}"] for n in range(3)] == [1, 1, 1]
    assert (log["begin 0"], log["begin 2"]) == (1, 1)
    assert log["begin 1"] in (1, 2)


async def test_a_run_of_a_killed_hub_goes_on_at_the_next(
    agent: Program, tmp_path: Path, retinue_home: Path
) -> None:
    token = (retinue_home / "keys" / "local.token").read_text()
    definition = {
        "name": "three",
        "steps": [
            {"id": "a", "skill": "work", "with": {"n": 0}},
            {"id": "b", "skill": "work", "timeout": "1h"},
            {"id": "c", "skill": "work"},
        ],
    }
    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        asked = {"workflow": definition, "input": {}, "run": "mine"}
        started = execute(hub.url_in("hub at"), "start_run", asked, token)
        assert started["result"]["run"] == "mine", started
        wait_until(lambda: "begin 1" in read_log(tmp_path), "the second step begins")
        hub.send(signal.SIGKILL)
        hub.wait()
    (tmp_path / "go").touch()
    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        hub.url_in("hub at")
        assert (await finish_only_run(retinue_home)).get() == {"n": 3}
    check_effects(tmp_path)


async def test_a_run_without_a_hub_goes_on_in_a_worker_when_it_was_killed(
    agent: Program, tmp_path: Path, retinue_home: Path
) -> None:
    with program("run", "flow.yaml", cwd=tmp_path) as running:
        wait_until(lambda: "begin 1" in read_log(tmp_path), "the second step begins")
        running.send(signal.SIGKILL)
        running.wait()
    with program("worker", cwd=tmp_path) as worker:
        worker.wait_for("worker on")
        (tmp_path / "go").touch()
        assert (await finish_only_run(retinue_home)).get() == {"n": 3}
        assert worker.end(signal.SIGTERM) == 0
    check_effects(tmp_path)


async def await_taken_up(home: Path) -> None:
    """Come back when the one run of a state folder has been taken up."""
    runs = watch_runs(home)
    try:
        (found,) = await runs.list_all()
        async with asyncio.timeout(WAIT_S):
            async for event in runs.follow(found.id):
                if event.kind == "run_resumed":
                    return
    finally:
        await runs.aclose()


@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGKILL])
async def test_a_run_that_is_taken_up_waits_for_agents_that_stopped_with_its_node(
    ended_by: int, agent: Program, tmp_path: Path, retinue_home: Path
) -> None:
    """As when a machine starts anew: the agent is not listed, or listed where it no longer is."""
    with program("run", "flow.yaml", cwd=tmp_path) as running:
        wait_until(lambda: "begin 1" in read_log(tmp_path), "the second step begins")
        running.send(signal.SIGKILL)
        running.wait()
    (tmp_path / "go").touch()
    agent.send(ended_by)
    agent.wait()
    with program("worker", cwd=tmp_path) as worker:
        await await_taken_up(retinue_home)
        with program("serve", "worker.py", cwd=tmp_path) as served:
            served.wait_for("published")
            assert (await finish_only_run(retinue_home)).get() == {"n": 3}
            assert worker.end(signal.SIGTERM) == 0


PLANS = {
    "name": "plans",
    "steps": [
        {
            "id": "each",
            "foreach": {"in": ["colorsys", "html", "bisect"], "concurrency": 2},
            "steps": [
                {
                    "id": "plan",
                    "skill": "create_plan",
                    "with": {"requirements": "tests for ${{ loop.item }}"},
                },
                {"id": "build", "skill": "generate_code"},
            ],
        }
    ],
}


@pytest.mark.crash
@pytest.mark.timeout(600)
async def test_a_run_of_a_hub_that_was_told_to_stop_goes_on_at_the_next(
    tmp_path: Path, retinue_home: Path
) -> None:
    """Its own agents stop with it and start with the next: neither is a failure of what they work for."""
    with program("hub", "--port", "0", cwd=tmp_path) as hub:
        hub.wait_for("exposed to MCP clients")
        token = (retinue_home / "keys" / "local.token").read_text()
        asked = {"workflow": PLANS, "input": {}, "run": "mine"}
        url = hub.url_in("hub at")
        assert execute(url, "start_run", asked, token)["result"]["run"] == "mine"
        done: list[str] = []
        while len(done) < 2:
            found = execute(url, "follow_run", {"run": "mine", "after": 0}, token)["result"]
            done = [one["step"] for one in found["events"] if one["event"] == "step_finished"]
            assert not found["done"], found
        assert hub.end(signal.SIGTERM) == 0
    with program("hub", "--port", "0", cwd=tmp_path) as hub:
        hub.wait_for("exposed to MCP clients")
        record = await follow_only_run(retinue_home)
        assert record.status == "done", record.fault
