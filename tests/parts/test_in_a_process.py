"""Parts in a process that serves: what fails is shown at ``/ready``, and streams end before the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from retinue.authoring.agent import Agent
from retinue.core.errors import InvalidSettingError
from retinue.mesh.permissions import Access
from retinue.parts.part import Opened, Part
from retinue.parts.process import Process
from retinue.runtime.agent_core import open_agent
from retinue.runtime.launch import Address, Core, Launch, ProcessIdentity, SettingsSource
from retinue.runtime.loading.targets import Target
from retinue.runtime.parts.protocols import ProbesPart
from retinue.runtime.run_process import prepared_state, run_process
from retinue.settings import Settings
from retinue.storage.state import State
from tests.parts.noted import OPEN, READY, START, make_part
from tests.runtime.composition.live_process import Main, ProcessStarter
from tests.system import Wire

WAIT_S = 60.0
AGENT = frozenset({"agent"})


def agent_of(parts: Sequence[Part], home: Path, *, hang_s: float = 3.0) -> Main:
    """The process of an agent that has these parts alone."""
    state = State(home)
    target = Target(Agent("parts-agent", version="1.0.0"), ())
    return lambda echo: run_process(
        Launch(
            identity=ProcessIdentity("agent", "parts-agent", "parts-agent"),
            source=SettingsSource(Settings()),
            state=state,
            echo=echo,
            core=Core(
                hold_state=partial(prepared_state, state, echo),
                open=partial(open_agent, "agent", target, None),
                access_of=lambda settings: Access({}),
            ),
            parts=parts,
            address=Address("127.0.0.1", 0),
            hang_s=hang_s,
        )
    )


def broken(moment: str, **facts: bool) -> Part:
    """A part that fails in one moment."""
    return make_part("broken", [], kinds=AGENT, failing=moment, **facts)


@pytest.mark.parametrize("moment", [OPEN, START, READY])
async def test_a_process_without_a_part_says_so_and_is_degraded(
    retinue_home: Path, monkeypatch: pytest.MonkeyPatch, wire: Wire, moment: str
) -> None:
    main = agent_of([broken(moment), ProbesPart()], retinue_home)
    async with ProcessStarter(monkeypatch).running(main) as process:
        token = f"Bearer {State(retinue_home).local_token()}"
        reply = await wire.get(f"{process.url}/ready", authorization=token)
        assert reply.status == 200
        (problem,) = reply.json["problems"]
        assert (reply.json["status"], problem["what"], problem["name"]) == ("degraded", "part", "broken")
        assert problem["reason"].endswith("it is broken — mend it")
        assert f"broken is not available: {problem['reason']}" in process.lines


@pytest.mark.parametrize("moment", [OPEN, START, READY])
async def test_a_process_does_not_start_without_a_required_part(
    retinue_home: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    main = agent_of([ProbesPart(), broken(moment, is_required=True)], retinue_home)
    with pytest.raises(InvalidSettingError, match="it is broken"):
        async with ProcessStarter(monkeypatch).running(main):
            pass


class StreamPart(Part):
    """A stream that ends when the process drains, and not before."""

    name = "stream"
    kinds = AGENT
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        drained = asyncio.Event()

        async def chunks() -> AsyncIterator[bytes]:
            yield b"first"
            await drained.wait()
            yield b" last"

        async def answer(request: Request) -> StreamingResponse:
            return StreamingResponse(chunks())

        yield Opened(routes=(Route("/stream", answer),), open_paths=frozenset({"/stream"}), drain=drained.set)


async def test_streams_drain_while_the_server_still_sends(
    retinue_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = agent_of([StreamPart()], retinue_home)
    async with (
        ProcessStarter(monkeypatch).running(main) as process,
        aiohttp.ClientSession() as session,
        session.get(f"{process.url}/stream") as reply,
        asyncio.timeout(WAIT_S),
    ):
        assert await reply.content.readany() == b"first"
        process.stop.ask("the test is over")
        assert await reply.content.read() == b" last"


class HangingPart(Part):
    """Hangs in one moment; notes its end."""

    name = "hanging"
    kinds = AGENT

    def __init__(self, moment: str) -> None:
        self._moment = moment
        self.hangs = asyncio.Event()
        self.is_closed = False

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            await self._enter(START)
            yield

        try:
            await self._enter(OPEN)
            yield Opened(running=running)
        finally:
            self.is_closed = True

    async def _enter(self, moment: str) -> None:
        if moment == self._moment:
            self.hangs.set()
            await asyncio.Event().wait()


@pytest.mark.parametrize("moment", [OPEN, START])
async def test_a_process_stops_though_a_part_hangs(
    retinue_home: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    part, lines = HangingPart(moment), list[str]()
    starter = ProcessStarter(monkeypatch)
    running = asyncio.create_task(agent_of([part], retinue_home, hang_s=0.01)(lines.append))
    await asyncio.wait_for(part.hangs.wait(), 30)
    starter.ask_to_stop()
    assert await asyncio.wait_for(running, 30) == 0
    assert part.is_closed
    assert lines[-1] == "stopping: the test is over"
