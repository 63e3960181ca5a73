"""When agents that do not answer are asked again."""

from __future__ import annotations

import asyncio
import socket

from retinue.core.record import Listing
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.health.agent_stats import AgentStatsTable
from retinue.mesh.health.probe_schedule import ProbeSchedule
from retinue.rpc.probe import probe
from retinue.web.http_client import HttpClient
from retinue.web.knock import Knocks
from tests.mesh.scripted import make_listing
from tests.requirements import requirement


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def _waits(schedule: ProbeSchedule, clock: Clock, agent: Listing, health: str, probes: int) -> list[float]:
    """The seconds between the probes of an agent of this health."""
    waits = []
    for _ in range(probes):
        schedule.note(agent, health, 60)  # type: ignore[arg-type]
        began = clock.now
        while not schedule.is_due(agent):
            clock.now += 0.25
        waits.append(clock.now - began)
    return waits


@requirement("P-30")
def test_an_agent_that_is_gone_is_asked_less_and_less_often() -> None:
    clock, agent = Clock(), make_listing("plan-agent")
    schedule = ProbeSchedule(clock, lambda: 1.0)
    assert schedule.is_due(agent), "one that was never asked"
    assert _waits(schedule, clock, agent, "unreachable", 6) == [5, 10, 20, 40, 60, 60]
    assert _waits(schedule, clock, agent, "degraded", 2) == [5, 5], "one that answers"
    schedule.note(agent, "healthy", 60)
    assert not len(schedule)


def test_agents_that_failed_together_are_not_asked_together() -> None:
    clock, agent = Clock(), make_listing("plan-agent")
    early, late = ProbeSchedule(clock, lambda: 0.0), ProbeSchedule(clock, lambda: 1.0)
    assert _waits(early, clock, agent, "unreachable", 5) == [4.5, 9, 18, 36, 54]
    assert _waits(late, clock, agent, "unreachable", 1) == [5]


def test_an_agent_that_moved_or_is_published_anew_is_asked_at_once() -> None:
    schedule = ProbeSchedule(Clock())
    agent = make_listing("plan-agent", url="http://127.0.0.1:1")
    schedule.note(agent, "unreachable", 60)
    assert not schedule.is_due(agent)
    assert schedule.is_due(make_listing("plan-agent", url="http://127.0.0.1:2"))
    schedule.forget(agent.id)
    assert schedule.is_due(agent)


async def test_a_port_where_nobody_listens_is_told_from_one_where_somebody_does() -> None:
    with Knocks() as knocks:
        with socket.socket() as listener, socket.socket() as other:
            listener.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/agent"
            closed = f"http://127.0.0.1:{other.getsockname()[1]}/agent"
            # one after another, because a socket that was refused asks again
            assert await knocks.is_refused(url, timeout_s=1)
            assert await knocks.is_refused(closed, timeout_s=1)
            listener.listen()
            assert not await knocks.is_refused(url, timeout_s=1)
            assert await knocks.is_refused(closed, timeout_s=1)
            assert not await knocks.is_refused(url, timeout_s=1)
            both = (knocks.is_refused(asked, timeout_s=1) for asked in (closed, url, closed))
            assert await asyncio.gather(*both) == [True, False, True]
        assert not await knocks.is_refused("http://agent.invalid:80", timeout_s=1)
        assert not await knocks.is_refused("ftp://127.0.0.1", timeout_s=1)
        assert not await knocks.is_refused("http://127.0.0.1:99999", timeout_s=1)


async def test_an_agent_that_is_back_is_healthy_at_the_next_probe() -> None:
    directory, table, schedule = Directory(MemoryListings()), AgentStatsTable(), ProbeSchedule()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        directory.upsert(make_listing("plan-agent", url=f"http://127.0.0.1:{listener.getsockname()[1]}"))

        async def ask() -> str:
            entries = directory.list_entries()
            await probe(directory, table, entries, http, timeout_s=5, schedule=schedule, longest_s=60)
            return directory.list_entries()[0].health

        async with HttpClient() as http:
            assert [await ask(), await ask()] == ["unreachable", "unreachable"]
            assert [entry.name for entry in await directory.list_unhealthy()] == ["plan-agent"]
            async with await asyncio.start_server(answer, sock=listener):
                assert await ask() == "healthy"
    assert await directory.list_unhealthy() == []
    assert not len(schedule)
