"""An agent in Markdown whose loop outlives the deaths of the processes that execute it.

The loop is that of `test_thinking`: three calls in each of six turns.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import orjson
import pytest
import urllib3

from retinue.workflows.runs.ports import Runs
from retinue.workflows.runs.records import RunRecord
from tests.crash.test_nodes import looking_at
from tests.crash.test_thinking import (
    ENDS_WITHIN_S,
    LEASE_S,
    SUM,
    TOOLS,
    TURNS,
    ThinkingAgents,
    check_calls,
    open_storage,
)
from tests.crash.test_thinking_victims import CALLS, FROZEN_S, HUB, REQUESTS
from tests.processes.freezing import freeze, list_databases
from tests.processes.running import Program, program, wait_until
from tests.requirements import requirement

RESEARCHER = "researcher.md"
GoOn = Callable[[], None]
"""Lets a call go on that stays."""
TEXT = """\
---
name: researcher
description: Adds numbers.
model: thinker-agent
tools: add
---
You add.
"""


@contextmanager
def running(tmp_path: Path) -> Iterator[ThinkingAgents]:
    agents = ThinkingAgents(tmp_path / "agents", texts={RESEARCHER: TEXT})
    try:
        agents.start()
        yield agents
    finally:
        agents.close()


def ask(
    url: str, home: Path, *, key: str | None = None, prompt: str = "Add", **arguments: str
) -> dict[str, Any]:
    """Ask the researcher at its own address, and wait; the whole reply."""
    headers = {"authorization": f"Bearer {(home / 'keys' / 'local.token').read_text()}"}
    headers["content-type"] = "application/json"
    if key is not None:
        headers["idempotency-key"] = key
    request = {"jsonrpc": "2.0", "method": "researcher", "params": {"prompt": prompt, **arguments}, "id": 1}
    with urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(ENDS_WITHIN_S)) as http:
        reply = http.request("POST", f"{url}/execute", body=orjson.dumps(request), headers=headers)
    answer: dict[str, Any] = orjson.loads(reply.data)
    return answer


async def begin(agents: ThinkingAgents, home: Path, call: str, **asked: str) -> asyncio.Task[dict[str, Any]]:
    """Ask the researcher, and wait until its loop is in a call, which stays."""
    url = await asyncio.to_thread(agents.url_of, RESEARCHER)
    asking = asyncio.create_task(asyncio.to_thread(ask, url, home, **asked))
    await asyncio.to_thread(wait_until, partial(agents.has_passed, f"begin {call}"), call)
    return asking


async def kill_researcher(agents: ThinkingAgents, asking: asyncio.Task[dict[str, Any]]) -> str:
    """Kill the researcher in a call; the address at which it is back."""
    agents.kill(RESEARCHER)
    with pytest.raises(urllib3.exceptions.HTTPError):
        await asking
    return await asyncio.to_thread(agents.url_of, RESEARCHER)


async def end_newest_run(database: str, folder: Path) -> RunRecord:
    async with looking_at(database, folder) as runs, asyncio.timeout(ENDS_WITHIN_S):
        newest = (await runs.list_all())[0]
        return await runs.finish(newest.id)


def check_run(record: RunRecord) -> None:
    """The answer is that of an undisturbed run, and the tokens are exact."""
    assert record.status == "done", record.fault
    assert record.usage is not None
    assert record.usage["input_tokens"] == 100 * (TURNS + 1)
    assert record.usage["output_tokens"] == 10 * (TURNS + 1)


@pytest.fixture
def database(retinue_home: Path) -> str:
    return f"sqlite:///{retinue_home}/runs.db"


@requirement("T-01")
async def test_a_loop_without_a_hub_goes_on_when_its_killed_agent_is_back(
    tmp_path: Path, retinue_home: Path, database: str
) -> None:
    with running(tmp_path) as agents:
        stays = agents.stay_at("add 11")
        asking = await begin(agents, retinue_home, "add 11", run="r")
        url = await kill_researcher(agents, asking)
        stays.unlink()
        check_run(await end_newest_run(database, tmp_path))
        check_calls(agents.take_log(), repeated=1)
        reply = await asyncio.to_thread(ask, url, retinue_home, run="r")
        assert reply["result"] == str(SUM)
        assert not agents.take_log()


@requirement("T-01")
async def test_the_caller_gets_its_answer_when_the_hub_is_killed_in_the_loop(
    tmp_path: Path, retinue_home: Path, database: str
) -> None:
    """The agent's own process goes on with the run, because no hub runs."""
    with running(tmp_path) as agents:
        stays = agents.stay_at("add 11")
        with program(*HUB, cwd=tmp_path) as hub:
            hub.url_in("hub at")
            asking = await begin(agents, retinue_home, "add 11")
            hub.send(signal.SIGKILL)
            hub.wait()
        stays.unlink()
        reply = await asking
        assert reply.get("result") == str(SUM), reply
        check_run(await end_newest_run(database, tmp_path))
        check_calls(agents.take_log(), repeated=1)


@requirement("T-01")
async def test_a_repeated_call_goes_on_where_the_killed_agent_was(
    tmp_path: Path, retinue_home: Path, database: str
) -> None:
    """The hub stops the run of a caller that is lost, until the call with the same key comes again."""
    with running(tmp_path) as agents, program(*HUB, cwd=tmp_path) as hub:
        hub.url_in("hub at")
        stays = agents.stay_at("add 11")
        asking = await begin(agents, retinue_home, "add 11", key="k")
        url = await kill_researcher(agents, asking)
        stays.unlink()
        reply = await asyncio.to_thread(ask, url, retinue_home, key="k")
        assert reply.get("result") == str(SUM), reply
        check_run(await end_newest_run(database, tmp_path))
        check_calls(agents.take_log(), repeated=TOOLS)


@pytest.mark.parametrize(("run", "status"), [(None, "cancelled"), ("r", "done")])
async def test_without_a_hub_a_caller_that_goes_away_ends_the_loop_unless_it_gave_a_run_id(
    run: str | None, status: str, tmp_path: Path, retinue_home: Path, database: str
) -> None:
    with running(tmp_path) as agents:
        stays = agents.stay_at("add 11")
        url = await asyncio.to_thread(agents.url_of, RESEARCHER)
        token = (retinue_home / "keys" / "local.token").read_text()
        params = {"prompt": "Add"} if run is None else {"prompt": "Add", "run": run}
        request = {"jsonrpc": "2.0", "method": "researcher", "params": params, "id": 1}
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        caller = HTTPConnection(url.removeprefix("http://"))
        caller.request("POST", "/execute", orjson.dumps(request), headers)
        await asyncio.to_thread(wait_until, partial(agents.has_passed, "begin add 11"), "the second turn")
        caller.close()
        if run is not None:
            stays.unlink()
        assert (await end_newest_run(database, tmp_path)).status == status
        stays.unlink(missing_ok=True)


@pytest.mark.crash
@pytest.mark.timeout(600)
async def test_the_caller_gets_its_answer_when_a_worker_went_on_for_a_frozen_hub(
    tmp_path: Path, retinue_home: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_RUNS__LEASE_S", str(LEASE_S))
    with running(tmp_path) as agents:
        stays = agents.stay_at("add 11")
        with ExitStack() as stack:
            hub = stack.enter_context(program(*HUB, cwd=tmp_path))
            hub.url_in("hub at")
            asking = await begin(agents, retinue_home, "add 11")
            stack.enter_context(program("worker", cwd=tmp_path)).wait_for("worker on")
            freeze(hub.process.pid, list_databases(retinue_home))
            stays.unlink()
            check_run(await end_newest_run(database, tmp_path))
            hub.send(signal.SIGCONT)
            reply = await asking
        assert reply.get("result") == str(SUM), reply
        check_calls(agents.take_log(), repeated=1)


@pytest.mark.crash
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("victim", ["hub", "agent", "agent without a hub"])
@pytest.mark.parametrize("storage", ["sqlite", "postgres"])
async def test_the_answer_is_that_of_an_undisturbed_call_in_whichever_call_a_process_is_killed(
    victim: str,
    storage: str,
    tmp_path: Path,
    retinue_home: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database, environment = open_storage(storage, retinue_home, request)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with running(tmp_path) as agents:
        for number, call in enumerate([*REQUESTS, *CALLS]):
            asked = {"key": f"k-{number}", "prompt": f"Add {number}"}
            stays = agents.stay_at(call)
            with ExitStack() as stack:
                if victim != "agent without a hub":
                    hub = stack.enter_context(program(*HUB, cwd=tmp_path))
                    hub.url_in("hub at")
                asking = await begin(agents, retinue_home, call, **asked)
                if victim == "hub":
                    hub.send(signal.SIGKILL)
                    hub.wait()
                    stays.unlink()
                    reply = await asking
                else:
                    url = await kill_researcher(agents, asking)
                    stays.unlink()
                    reply = await asyncio.to_thread(ask, url, retinue_home, **asked)
            assert reply.get("result") == str(SUM), (call, reply)
            check_run(await end_newest_run(database, tmp_path))
            check_calls(agents.take_log(), repeated=TOOLS)


@dataclass
class Frozen:
    """One call of the researcher in which one process after the other is frozen, and thaws later."""

    agents: ThinkingAgents
    database: str
    folder: Path
    home: Path
    programs: ExitStack
    hub: Program
    worker: Program | None = None

    async def reach(self, call: str) -> None:
        await asyncio.to_thread(wait_until, partial(self.agents.has_passed, f"begin {call}"), call)

    async def freeze_agent(self, name: str, call: str, go_on: GoOn) -> None:
        """Freeze an agent in a call, longer than a lease; then the call goes on."""
        await self.reach(call)
        await asyncio.to_thread(self.agents.freeze, name, list_databases(self.home))
        go_on()
        await asyncio.sleep(FROZEN_S)
        self.agents.send(name, signal.SIGCONT)

    async def freeze_hub(self, call: str, go_on: GoOn) -> None:
        """Freeze the hub in a call until a worker has taken its run over."""
        await self.reach(call)
        if self.worker is None:
            self.worker = self.programs.enter_context(program("worker", cwd=self.folder))
            await asyncio.to_thread(self.worker.wait_for, "worker on")
        await self._freeze(self.hub, go_on)

    async def freeze_worker(self, call: str, go_on: GoOn) -> None:
        """Freeze the worker in a call until the hub has taken its run over."""
        await self.reach(call)
        assert self.worker is not None
        await self._freeze(self.worker, go_on)

    async def _freeze(self, node: Program, go_on: GoOn) -> None:
        async with looking_at(self.database, self.folder) as runs, asyncio.timeout(ENDS_WITHIN_S):
            run = (await runs.list_all())[0].id
            before = await count_resumptions(runs, run)
            await asyncio.to_thread(freeze, node.process.pid, list_databases(self.home))
            while await count_resumptions(runs, run) == before:
                await asyncio.sleep(0.05)
        go_on()
        node.send(signal.SIGCONT)


async def count_resumptions(runs: Runs, run: str) -> int:
    return sum(event.kind == "run_resumed" for event in await runs.list_events(run))


@requirement("T-01")
@requirement("T-09")
@pytest.mark.timeout(600)
async def test_the_caller_gets_its_answer_whoever_is_frozen_in_its_loop(
    tmp_path: Path, retinue_home: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's process, the tool's, the agent's own, the hub, and the worker that went on for it."""
    monkeypatch.setenv("RETINUE_RUNS__LEASE_S", str(LEASE_S))
    with running(tmp_path) as agents, ExitStack() as programs:
        points = ("complete 1", "add 11", "complete 2", "add 31", "complete 5")
        go_on = {call: agents.stay_at(call).unlink for call in points}
        hub = programs.enter_context(program(*HUB, cwd=tmp_path))
        hub.url_in("hub at")
        frozen = Frozen(agents, database, tmp_path, retinue_home, programs, hub)
        asking = await begin(agents, retinue_home, "complete 1")
        await frozen.freeze_agent("thinker", "complete 1", go_on["complete 1"])
        await frozen.freeze_agent("adder", "add 11", go_on["add 11"])
        await frozen.freeze_agent(RESEARCHER, "complete 2", go_on["complete 2"])
        await frozen.freeze_hub("add 31", go_on["add 31"])
        await frozen.freeze_worker("complete 5", go_on["complete 5"])
        reply = await asking
        assert reply.get("result") == str(SUM), reply
        check_run(await end_newest_run(database, tmp_path))
        # the call and the request in which hub and worker were frozen
        check_calls(agents.take_log(), repeated=2)


@requirement("T-01")
@pytest.mark.crash
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("victim", ["thinker", "adder", RESEARCHER, "hub", "worker"])
@pytest.mark.parametrize("storage", ["sqlite", "postgres"])
async def test_the_answer_is_that_of_an_undisturbed_call_in_whichever_call_a_process_is_frozen(
    storage: str,
    victim: str,
    tmp_path: Path,
    retinue_home: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database, environment = open_storage(storage, retinue_home, request)
    for name, value in {**environment, "RETINUE_RUNS__LEASE_S": str(LEASE_S)}.items():
        monkeypatch.setenv(name, value)
    with ExitStack() as programs:
        # before the agents: the researcher executes runs itself if no hub runs when it starts
        hub = programs.enter_context(program(*HUB, cwd=tmp_path))
        hub.url_in("hub at")
        agents = programs.enter_context(running(tmp_path))
        frozen = Frozen(agents, database, tmp_path, retinue_home, programs, hub)
        for number, call in enumerate([*REQUESTS[1:], *CALLS]):
            begins, go_on = agents.stay_at("complete 0").unlink, agents.stay_at(call).unlink
            asking = await begin(
                agents, retinue_home, "complete 0", key=f"k-{number}", prompt=f"Add {number}"
            )
            if victim == "worker":
                await frozen.freeze_hub("complete 0", begins)
                await frozen.freeze_worker(call, go_on)
            else:
                begins()
                if victim == "hub":
                    await frozen.freeze_hub(call, go_on)
                else:
                    await frozen.freeze_agent(victim, call, go_on)
            reply = await asking
            assert reply.get("result") == str(SUM), (call, reply)
            check_run(await end_newest_run(database, tmp_path))
            check_calls(agents.take_log(), repeated=2 if victim == "worker" else 1)
