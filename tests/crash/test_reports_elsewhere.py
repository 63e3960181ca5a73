"""What a run writes is seen at a hub while another process on its database executes the run."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import sqlalchemy as sa
import urllib3

import retinue
from retinue.workflows.durable.database import RunDatabase
from tests.crash.agents import AGENT, KeptAgents
from tests.crash.postgres import Postgres
from tests.crash.test_thinking import open_storage, start_run
from tests.crash.test_thinking_victims import HUB
from tests.mcp.clients import connect
from tests.processes.running import WAIT_S, execute, program, wait_until
from tests.requirements import requirement

MODEL = (
    AGENT.format(name="thinker")
    + '''
from retinue import Answer, Context


@agent.skill
async def complete(
    system: str,
    messages: list[dict],
    ctx: Context,
    tools: list[dict] | None = None,
    tool_choice: str = "auto",
    output_schema: dict | None = None,
    max_tokens: int | None = None,
) -> Answer:
    """Writes before and after one call; the text of each turn comes in two pieces."""
    turn = sum(message["role"] == "assistant" for message in messages)
    reach("begin complete", turn)
    await stay("complete", turn)
    await ctx.stream_text(f"Turn {turn}", begins=True)
    await ctx.stream_text(" is written.")
    await stay("written", turn)
    calls = [{"id": "c", "name": "adder-agent__add", "arguments": {"n": turn}}] if turn < 3 else []
    return Answer(
        {
            "text": f"Turn {turn} is written.",
            "calls": calls,
            "finish": "calls" if calls else "stop",
            "model": "scripted",
            "provider": "test",
        },
        usage={"model": "scripted", "input_tokens": 100, "output_tokens": 10},
    )
'''
)
TOOL = (
    AGENT.format(name="adder")
    + '''

@agent.skill
async def add(n: int) -> int:
    """Adds one to a number."""
    reach("begin add", n)
    await stay("add", n)
    return n + 1
'''
)
RENEWALS = 3
LEASE = {"RETINUE_RUNS__LEASE_S": "2"}
STAYS = ("complete 0", "complete 1", "written 2", "add 2")


class Watchers:
    """A program of the client and an MCP client, which follow the run at the hub."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.token = token
        self.in_program: list[str] = []
        self.over_mcp: list[str] = []

    async def follow_in_program(self) -> None:
        async with retinue.connect(self.url, token=self.token) as mesh:
            async for update in mesh.run("r").events(progress=True):
                self.in_program.append(f"{update.step} {update.kind} {update.text}")

    async def follow_over_mcp(self) -> None:
        async def note(progress: float, total: float | None, message: str | None) -> None:
            self.over_mcp.append(message or "")

        async with connect(f"{self.url}/mcp", authorization=f"Bearer {self.token}") as client:
            after, is_done = 0, False
            while not is_done:
                reply = await client.call_tool(
                    "follow_run", {"run": "r", "after": after}, progress_callback=note
                )
                assert reply.structured_content is not None
                after, is_done = reply.structured_content["next"], reply.structured_content["done"]

    async def see(self, program: str, mcp: str) -> None:
        """Wait until both have this."""
        try:
            async with asyncio.timeout(WAIT_S):
                while program not in "\n".join(self.in_program) or mcp not in "".join(self.over_mcp):
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pytest.fail(f"{program!r} or {mcp!r} did not come: {self.in_program} {self.over_mcp}")


def read_page(url: str, token: str) -> str:
    """The page of the run on the dashboard, as its script reads it again and again."""
    with urllib3.PoolManager(retries=False, timeout=WAIT_S) as http:
        page = http.request("GET", f"{url}/ui/runs/r", headers={"authorization": f"Bearer {token}"})
    assert page.status == 200
    return page.data.decode()


async def count_watches(url: str) -> int:
    database = RunDatabase(url)
    try:
        query = sa.text(f"SELECT count(*) FROM {database.watches}")
        return await database.read(lambda connection: int(connection.execute(query).scalar_one()))
    finally:
        database.close()


async def await_renewals(url: str) -> None:
    """Wait until each node has renewed its lease some times.

    A node looks twice a second whether its runs are watched, and renews its lease as often. So a node that
    was kept from the one was kept from the other.
    """
    database = RunDatabase(url)
    renewals: Counter[str] = Counter()
    seen: dict[str, float] = {}
    try:
        query = sa.text(f"SELECT executor, expires FROM {database.nodes}")
        async with asyncio.timeout(WAIT_S):
            while not renewals or min(renewals.values()) < RENEWALS:
                rows = await database.read(lambda connection: connection.execute(query).fetchall())
                for executor, expires in rows:
                    renewals[executor] += seen.get(executor) not in (None, expires)
                    seen[executor] = expires
                for executor in renewals.keys() - {row.executor for row in rows}:
                    del renewals[executor]
                await asyncio.sleep(0.05)
    finally:
        database.close()


@requirement("T-17")
@pytest.mark.parametrize("storage", ["sqlite", pytest.param("postgres", marks=pytest.mark.crash)])
async def test_a_hub_shows_the_text_and_the_calls_of_a_run_that_a_worker_executes(
    storage: str, tmp_path: Path, retinue_home: Path, request: pytest.FixtureRequest
) -> None:
    """Each text is seen before the request that writes it has ended, each call before its end."""
    database, environment = open_storage(storage, retinue_home, request)
    environment |= LEASE
    agents = KeptAgents(tmp_path / "agents", {"thinker": MODEL, "adder": TOOL}, 0.5)
    stays = {point: agents.folder / f"stay {point}" for point in STAYS}
    for stay in stays.values():
        stay.touch()
    async with AsyncExitStack() as stack:
        stack.callback(agents.close)
        await asyncio.to_thread(agents.start)

        async def reach(point: str) -> None:
            await asyncio.to_thread(wait_until, lambda: f"begin {point}" in agents.read_log(), point)

        with program(*HUB, cwd=tmp_path, environment=environment) as hub:
            start_run(hub, retinue_home, "r")
            await reach("complete 0")
            hub.send(signal.SIGKILL)
            hub.wait()
        worker = stack.enter_context(program("worker", cwd=tmp_path, environment=environment))
        worker.wait_for("worker on")
        stays["complete 0"].unlink()
        await reach("complete 1")
        hub = stack.enter_context(program(*HUB, cwd=tmp_path, environment=environment))
        token = (retinue_home / "keys" / "local.token").read_text().strip()
        watchers = Watchers(hub.url_in("hub at"), token)
        tasks = [
            asyncio.create_task(watchers.follow_in_program()),
            asyncio.create_task(watchers.follow_over_mcp()),
        ]
        stack.callback(lambda: [task.cancel() for task in tasks])
        async with asyncio.timeout(WAIT_S):
            while not await count_watches(database):
                await asyncio.sleep(0.05)
        await await_renewals(database)
        stays["complete 1"].unlink()
        await reach("complete 2")
        await watchers.see("t/turn-3/model text Turn 2 is written.", "Turn 2 is written.")
        assert "Turn 2 is written." in await asyncio.to_thread(read_page, watchers.url, token)
        stays["written 2"].unlink()
        await reach("add 2")
        await watchers.see("t/turn-3/call-1 step_started", "")
        asked = {"run": "r", "progress_after": 0, "wait_s": 0}
        page = await asyncio.to_thread(execute, watchers.url, "follow_run", asked, token)
        assert "Turn 2 is written." in [one["text"] for one in page["result"]["progress"]]
        stays["add 2"].unlink()
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*tasks)
        assert worker.process.poll() is None
    kinds = [line.rpartition(" written.")[0] or line for line in watchers.in_program]
    texts = [kinds.index(f"t/turn-{turn + 1}/model text Turn {turn} is") for turn in (2, 3)]
    ends = [line.startswith("t/turn-3/model step_finished") for line in kinds].index(True)
    assert texts[0] < ends < texts[1], watchers.in_program


@requirement("T-17")
@pytest.mark.crash
async def test_the_page_of_a_second_hub_shows_what_a_run_of_the_first_hub_writes(
    postgres: Postgres, tmp_path: Path, retinue_home: Path
) -> None:
    """The text of a request that begins after the first look is on the page before the request has ended."""
    environment = {"RETINUE_DATABASE": postgres.create_database(), **LEASE}
    second = {**environment, "RETINUE_HOME": str(tmp_path / "second")}
    agents = KeptAgents(tmp_path / "agents", {"thinker": MODEL, "adder": TOOL}, 0.5)
    stays = {point: agents.folder / f"stay {point}" for point in ("complete 0", "written 1")}
    for stay in stays.values():
        stay.touch()
    async with AsyncExitStack() as stack:
        stack.callback(agents.close)
        await asyncio.to_thread(agents.start)
        hub = stack.enter_context(program(*HUB, cwd=tmp_path, environment=environment))
        other = stack.enter_context(program(*HUB, cwd=tmp_path, environment=second))
        start_run(hub, retinue_home, "r")
        await asyncio.to_thread(wait_until, lambda: "begin complete 0" in agents.read_log(), "the request")
        url = other.url_in("hub at")
        token = (tmp_path / "second" / "keys" / "local.token").read_text().strip()
        assert "is written" not in await asyncio.to_thread(read_page, url, token)
        async with asyncio.timeout(WAIT_S):
            while not await count_watches(environment["RETINUE_DATABASE"]):
                await asyncio.sleep(0.05)
        await await_renewals(environment["RETINUE_DATABASE"])
        stays["complete 0"].unlink()
        async with asyncio.timeout(WAIT_S):
            while "Turn 1 is written." not in await asyncio.to_thread(read_page, url, token):
                await asyncio.sleep(0.05)
        assert "begin complete 2" not in agents.read_log()
        stays["written 1"].unlink()
        asked = {"run": "r", "wait_s": 20}
        async with asyncio.timeout(60):
            while not (reply := await asyncio.to_thread(execute, url, "follow_run", asked, token))["result"][
                "done"
            ]:
                pass
        assert reply["result"]["status"] == "done"
