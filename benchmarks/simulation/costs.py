"""The costs of the model: what one call, probe, exchange and change takes of a hub, measured on this machine.

Processor time is measured without other members, so that the comparison with four of them is a prediction.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.simulation.members import SmallServer, open_member
from retinue.mesh.health.probe_sharing import ProbeSharing
from retinue.runtime.many_hubs.exchange import BEAT_S
from retinue.storage.mesh_news import MeshNews, News
from tests.crash.postgres import Postgres
from tests.mesh.scripted import make_listing

PROBED = 400
EXCHANGES = 60
FINDINGS = 5_000
IDLE_S = 10.0
"""How long a hub without agents is measured."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Processor seconds of a hub, and bytes; the first ones are from other benchmarks of this repository.

    ``call_s`` is a call through ``/execute``, ``read_s`` a new card, ``check_s`` an unchanged card of a
    registry without stamps. ``word_bytes`` is what a hub remembers of an agent that others probe.
    """

    call_s: float = 240e-6
    read_s: float = 570e-6
    check_s: float = 150e-6
    call_bytes: float = 2_000.0
    card_bytes: float = 3_500.0
    base_bytes: float = 120e6
    agent_bytes: float = 2_000.0
    word_bytes: float = 150.0
    probe_bytes: float = 1_500.0
    finding_bytes: float = 9.0
    news_bytes: float = 120.0
    probe_s: float = 145e-6
    look_s: float = 7.8e-6
    """A look at one agent in a round, whether it has to be probed."""
    hear_s: float = 0.41e-6
    exchange_s: float = 1.36e-3
    database_s: float = 0.8e-3
    """Processor time of Postgres for one exchange."""
    row_s: float = 20e-6
    """The same for each message that it hands to a member."""
    idle_s: float = 2.5e-3
    """Processor time of a process for each second in which nothing happens: timers and the event loop."""


async def measure_costs(postgres: Postgres) -> Costs:
    """The costs with those parts measured that the comparison with reality needs."""
    with SmallServer() as server:
        probe_s, look_s = await _measure_probes(postgres, server.url)
        exchange_s = await _measure_exchange(postgres)
        idle_s = await _measure_idle(postgres, server.url, exchange_s)
    hear_s = _measure_hearing()
    return Costs(probe_s=probe_s, look_s=look_s, exchange_s=exchange_s, hear_s=hear_s, idle_s=idle_s)


async def _measure_probes(postgres: Postgres, url: str) -> tuple[float, float]:
    """Processor time of a probe, and of a look at an agent that need not be probed."""
    async with open_member(postgres.create_database(), "alone", url, PROBED, refresh_s=3600.0) as member:
        await asyncio.sleep(0)
        spent_s = await _cpu_s(member.probe_all)
        looks_s = await _cpu_s(member.look_at_all)
        return spent_s / PROBED, looks_s / PROBED


async def _measure_exchange(postgres: Postgres) -> float:
    news = MeshNews(postgres.create_database(), "alone", "hub", None)
    try:
        await news.exchange([])

        async def exchange() -> None:
            for _ in range(EXCHANGES):
                await news.exchange([News("findings", b"x" * 90)])

        return await _cpu_s(exchange) / EXCHANGES
    finally:
        await news.aclose()


async def _measure_idle(postgres: Postgres, url: str, exchange_s: float) -> float:
    """Processor time of a hub without agents in each second, without its exchanges, which the model has."""
    async with open_member(postgres.create_database(), "idle", url, 0, refresh_s=IDLE_S) as member:
        works = (member.upkeep.run(), member.exchange.run())
        tasks = [asyncio.create_task(work) for work in works]
        await asyncio.sleep(BEAT_S)
        spent_s = await _cpu_s(partial(asyncio.sleep, IDLE_S))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return max(0.0, spent_s / IDLE_S - exchange_s / BEAT_S)


def _measure_hearing() -> float:
    first, second = ProbeSharing("here"), ProbeSharing("here")
    for sharing, own in ((first, "a"), (second, "b")):
        sharing.set_members(own, ("a", "b"))
    for number in range(FINDINGS):
        first.note(make_listing(f"a{number}"), "healthy")
    findings = first.take_findings()
    began = time.process_time()
    second.hear(findings)
    return (time.process_time() - began) / FINDINGS


async def _cpu_s(work: Callable[[], Awaitable[None]]) -> float:
    began = time.process_time()
    await work()
    return time.process_time() - began
