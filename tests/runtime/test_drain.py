"""A process that is asked to stop finishes its calls, refuses new ones, and ends within its setting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from retinue.authoring.agent import Agent
from retinue.runtime.agent_process import ServeOptions, serve_agent
from retinue.runtime.hub_process import HubOptions, run_hub
from retinue.runtime.launch import Address
from retinue.runtime.loading.targets import Target
from retinue.settings import Settings
from retinue.settings_tables import HubTable, TimeoutTable
from retinue.storage.state import State
from tests.runtime.composition.live_process import LiveProcess, ProcessStarter
from tests.system import Wire

WAIT_S = 50.0
TRACE = "a" * 32


@dataclass
class SlowAgent:
    """An agent whose skill ``work`` ends when the test lets it, in a process of the test."""

    agent: Agent = field(default_factory=lambda: Agent("slow-agent", version="1.0.0"))
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    may_end: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        @self.agent.skill(expose=True)
        async def work() -> str:
            """Works until it may end."""
            self.begun.set()
            await self.may_end.wait()
            return "done"

        @self.agent.skill(expose=True)
        async def help_out() -> str:
            """Helps another call."""
            return "helped"

    @asynccontextmanager
    async def serve(
        self, home: Path, monkeypatch: pytest.MonkeyPatch, drain_s: float, *, publish: bool = False
    ) -> AsyncIterator[LiveProcess]:
        settings = Settings(timeouts=TimeoutTable(drain_s=drain_s))
        options = ServeOptions(Address("127.0.0.1", 0), publish=publish)
        target = Target(self.agent, ())

        starter = ProcessStarter(monkeypatch)
        async with starter.running(
            lambda echo: serve_agent(target, options, settings, State(home), echo)
        ) as process:
            yield process


async def until_printed(process: LiveProcess, text: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while not any(text in line for line in process.lines):
            await asyncio.sleep(0.01)


async def test_a_stopping_process_finishes_calls_and_refuses_new_ones(
    retinue_home: Path, monkeypatch: pytest.MonkeyPatch, wire: Wire
) -> None:
    slow = SlowAgent()
    async with slow.serve(retinue_home, monkeypatch, WAIT_S) as process:
        working = asyncio.create_task(wire.call(process.url, "work", x_openstarry_trace_id=TRACE))
        await slow.begun.wait()
        process.stop.ask("the test is over")
        await until_printed(process, "1 call in flight: waiting up to 50 s")

        refused = await wire.call(process.url, "help_out")
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.error["code"] == -33029
        assert refused.error["message"] == "Stopping: this process takes no new calls"
        assert refused.error["data"]["type"] == "stopping"
        assert refused.error["data"]["retry_after_s"] == 1.0
        rest = await wire.post(f"{process.url}/tools/call/help_out", {})
        assert (rest.status, rest.headers["retry-after"]) == (503, "1")
        assert rest.json["data"]["type"] == "stopping"
        assert (await wire.get(f"{process.url}/ready")).status == 503
        assert (await wire.get(f"{process.url}/health")).status == 200
        # what the call in flight needs is no new call
        helped = await wire.call(process.url, "help_out", x_openstarry_trace_id=TRACE)
        assert helped.result == "helped"

        slow.may_end.set()
        assert (await working).result == "done"


async def test_a_stopping_process_cuts_calls_off_after_its_setting(
    retinue_home: Path, monkeypatch: pytest.MonkeyPatch, wire: Wire
) -> None:
    slow = SlowAgent()
    async with slow.serve(retinue_home, monkeypatch, 0.05) as process:
        working = asyncio.create_task(wire.call(process.url, "work"))
        await slow.begun.wait()
    reply = await working
    assert reply.status == 503
    assert reply.json == {"detail": "it was stopping", "data": {"type": "cancelled"}}
    assert "cutting off 1 call after 0.05 s" in process.lines


async def test_a_hub_keeps_its_agents_until_the_calls_to_them_have_ended(
    retinue_home: Path, monkeypatch: pytest.MonkeyPatch, wire: Wire
) -> None:
    slow = SlowAgent()
    settings = Settings(hub=HubTable(models=()))
    options = HubOptions(Address("127.0.0.1", 0), bare=True)
    stopped: list[str] = []

    async def stop(supervisor: object) -> None:
        stopped.append("agents")

    monkeypatch.setattr("retinue.runtime.supervisor.Supervisor.stop", stop)
    async with (
        slow.serve(retinue_home, monkeypatch, WAIT_S, publish=True),
        ProcessStarter(monkeypatch).running(
            lambda echo: run_hub(options, settings, State(retinue_home), echo)
        ) as hub,
    ):
        working = asyncio.create_task(wire.call(hub.url, "work"))
        await slow.begun.wait()
        hub.stop.ask("the test is over")
        await until_printed(hub, "1 call in flight")
        assert not stopped
        slow.may_end.set()
        assert (await working).result == "done"
    assert stopped


async def test_an_agent_that_stops_together_with_its_hub_prints_no_warning(
    retinue_home: Path, monkeypatch: pytest.MonkeyPatch, wire: Wire, capsys: pytest.CaptureFixture[str]
) -> None:
    slow, other = SlowAgent(), SlowAgent(Agent("other-agent", version="1.0.0"))
    options, state = HubOptions(Address("127.0.0.1", 0), bare=True), State(retinue_home)
    settings = Settings(hub=HubTable(models=()))
    async with slow.serve(retinue_home, monkeypatch, WAIT_S, publish=True):
        starter = ProcessStarter(monkeypatch)
        async with starter.running(lambda echo: run_hub(options, settings, state, echo)) as hub:
            working = asyncio.create_task(wire.call(f"{hub.url}/agents/slow-agent", "work"))
            await slow.begun.wait()
            async with other.serve(retinue_home, monkeypatch, WAIT_S, publish=True) as agent:
                hub.stop.ask("both stop")
                await until_printed(hub, "1 call in flight")
                agent.stop.ask("both stop")
                await agent.task
            slow.may_end.set()
            assert (await working).result == "done"
    assert "level='warning' event='hub not told'" not in capsys.readouterr().out
