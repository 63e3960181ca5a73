"""An agent in Markdown whose loop outlives the deaths of the processes that execute it.

The loop is that of `test_thinking`: three calls in each of six turns.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import urllib3

from retinue.workflows.runs.records import RunRecord
from tests.crash.test_nodes import looking_at
from tests.crash.test_thinking import ENDS_WITHIN_S, SUM, ThinkingAgents, check_calls
from tests.processes.running import program, wait_until

RESEARCHER = "researcher.md"
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


def ask(url: str, home: Path, *, key: str | None = None, **arguments: str) -> dict[str, Any]:
    """Ask the researcher at its own address, and wait; the whole reply."""
    headers = {"authorization": f"Bearer {(home / 'keys' / 'local.token').read_text()}"}
    headers["content-type"] = "application/json"
    if key is not None:
        headers["idempotency-key"] = key
    request = {"jsonrpc": "2.0", "method": "researcher", "params": {"prompt": "Add", **arguments}, "id": 1}
    with urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(ENDS_WITHIN_S)) as http:
        reply = http.request("POST", f"{url}/execute", body=orjson.dumps(request), headers=headers)
    answer: dict[str, Any] = orjson.loads(reply.data)
    return answer


async def end_only_run(database: str, folder: Path) -> RunRecord:
    """The only run, once it has ended."""
    async with looking_at(database, folder) as runs, asyncio.timeout(ENDS_WITHIN_S):
        (record,) = await runs.list_all()
        return await runs.finish(record.id)


@pytest.fixture
def database(retinue_home: Path) -> str:
    return f"sqlite:///{retinue_home}/runs.db"


async def test_a_loop_without_a_hub_goes_on_when_its_killed_agent_is_back(
    tmp_path: Path, retinue_home: Path, database: str
) -> None:
    with running(tmp_path) as agents:
        stays = agents.stay_at("add 11")
        asking = asyncio.create_task(asyncio.to_thread(ask, agents.url_of(RESEARCHER), retinue_home, run="r"))
        await asyncio.to_thread(wait_until, lambda: agents.has_passed("begin add 11"), "the second turn")
        agents.kill(RESEARCHER)
        with pytest.raises(urllib3.exceptions.HTTPError):
            await asking
        stays.unlink()
        record = await end_only_run(database, tmp_path)
        assert record.status == "done", record.fault
        check_calls(agents.take_log(), repeated=1)
        url = await asyncio.to_thread(agents.url_of, RESEARCHER)
        reply = await asyncio.to_thread(ask, url, retinue_home, run="r")
        assert reply["result"] == str(SUM)
        assert not agents.take_log()


async def test_the_caller_gets_its_answer_when_the_hub_is_killed_in_the_loop(
    tmp_path: Path, retinue_home: Path, database: str
) -> None:
    with running(tmp_path) as agents:
        stays = agents.stay_at("add 11")
        with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
            hub.url_in("hub at")
            asking = asyncio.create_task(asyncio.to_thread(ask, agents.url_of(RESEARCHER), retinue_home))
            await asyncio.to_thread(wait_until, lambda: agents.has_passed("begin add 11"), "the second turn")
            hub.send(signal.SIGKILL)
            hub.wait()
        stays.unlink()
        reply = await asking
        assert reply.get("result") == str(SUM), reply
        check_calls(agents.take_log(), repeated=1)


async def test_a_repeated_call_goes_on_where_the_killed_agent_was(
    tmp_path: Path, retinue_home: Path, database: str
) -> None:
    with running(tmp_path) as agents, program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        hub.url_in("hub at")
        stays = agents.stay_at("add 11")
        asking = asyncio.create_task(asyncio.to_thread(ask, agents.url_of(RESEARCHER), retinue_home, key="k"))
        await asyncio.to_thread(wait_until, lambda: agents.has_passed("begin add 11"), "the second turn")
        agents.kill(RESEARCHER)
        with pytest.raises(urllib3.exceptions.HTTPError):
            await asking
        await asyncio.sleep(1.0)
        url = await asyncio.to_thread(agents.url_of, RESEARCHER)
        stays.unlink()
        reply = await asyncio.to_thread(ask, url, retinue_home, key="k")
        assert reply.get("result") == str(SUM), reply
        check_calls(agents.take_log(), repeated=3)
