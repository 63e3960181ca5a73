"""A discrete-event model of one mesh: hubs that answer calls, probe agents, and exchange news over Postgres.

Each processor is a queue in the order of arrival. Calls and probes are simulated at a few of the hubs,
because hubs do not wait for each other's. News are simulated at all of them.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from benchmarks.simulation.costs import Costs
from retinue.runtime.many_hubs.exchange import BEAT_S, GATHER_S
from retinue.runtime.many_hubs.verdicts import SEND_S

SAMPLED = 3
"""Hubs whose calls and probes are simulated."""

AGENT_S = 0.02
"""The mean time that an agent takes for a call."""


@dataclass(frozen=True, slots=True)
class World:
    """What is simulated: ``calls_per_s`` and ``changes_per_s`` are those of the whole mesh.

    ``has_stamps`` = the registry tells that nothing has changed, as a hub does; otherwise each card is
    checked at each refresh. ``shares`` = the hubs share probes.
    """

    hubs: int = 100
    processes: int = 2
    agents: int = 1_000_000
    calls_per_s: float = 100_000.0
    changes_per_s: float = 10.0
    refresh_s: float = 60.0
    database_cores: int = 4
    has_stamps: bool = True
    shares: bool = True
    seconds: float = 20.0
    costs: Costs = field(default_factory=Costs)


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a run; shares of processors are of all processors of a hub, or of the database."""

    hub_load: float
    background_load: float
    database_load: float
    p50_s: float
    p99_s: float
    converged_s: float
    exchanges_per_s: float
    probes_per_s: float
    hub_bytes_per_s: float
    database_bytes_per_s: float
    bytes_per_change: float
    hub_memory_bytes: float


class _Processors:
    """The processors of one machine, each takes one job at a time."""

    def __init__(self, number: int) -> None:
        self._free_at = [0.0] * number
        self.busy_s = 0.0

    def run(self, at: float, work_s: float) -> float:
        """When a job ends that arrives now."""
        began = max(at, heapq.heappop(self._free_at))
        heapq.heappush(self._free_at, began + work_s)
        self.busy_s += work_s
        return began + work_s


class Simulation:
    """One run of a world; equal seeds give equal runs."""

    def __init__(self, world: World, seed: int = 1) -> None:
        self._world = world
        self._draw = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self._hubs = [_Processors(world.processes) for _ in range(world.hubs)]
        self._background_s = [0.0] * world.hubs
        self._database = _Processors(world.database_cores)
        self._sampled = min(SAMPLED, world.hubs)
        self._waits: list[float] = []
        self._converged: list[float] = []
        self._exchanges = 0
        self._probes = 0
        self._hub_bytes = 0.0
        self._database_bytes = 0.0
        self._change_bytes = 0.0
        self._changes = 0
        # the news that wait for the next exchange of a hub: when found, number of findings, is a change
        self._unheard: list[list[tuple[float, float, bool]]] = [[] for _ in range(world.hubs)]
        self._unsent: list[list[tuple[float, float, bool]]] = [[] for _ in range(world.hubs)]
        self._is_due = [False] * world.hubs
        self._left: dict[float, int] = {}

    def run(self) -> Result:
        world = self._world
        for hub in range(world.hubs):
            self._at(self._draw.random() * BEAT_S, partial(self._beat, hub))
            if world.shares and world.hubs > 1:
                self._at(self._draw.random() * SEND_S, partial(self._send_findings, hub))
        for hub in range(self._sampled):
            self._at(0.0, partial(self._call, hub))
            self._at(0.0, partial(self._look, hub))
        if world.changes_per_s:
            self._at(0.0, self._change)
        while self._events and self._events[0][0] < world.seconds:
            at, _, event = heapq.heappop(self._events)
            event(at)
        return self._result()

    def _at(self, at: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (at, next(self._order), event))

    def _work(self, at: float, hub: int, work_s: float, *, is_call: bool = False) -> float:
        if not is_call:
            self._background_s[hub] += work_s
        return self._hubs[hub].run(at, work_s)

    def _call(self, hub: int, at: float) -> None:
        """A call arrives; the hub works before and after the agent does."""
        rate = self._world.calls_per_s / self._world.hubs
        if not rate:
            return
        half_s = self._world.costs.call_s / 2
        sent_at = self._work(at, hub, half_s, is_call=True)
        agent_s = self._draw.expovariate(1 / AGENT_S)

        def answer(answered_at: float) -> None:
            ended_at = self._work(answered_at, hub, half_s, is_call=True)
            self._waits.append(ended_at - at - agent_s)

        self._at(sent_at + agent_s, answer)
        self._hub_bytes += 2 * self._world.costs.call_bytes
        self._at(at + self._draw.expovariate(rate), partial(self._call, hub))

    def _look(self, hub: int, at: float) -> None:
        """One second of upkeep: timers, looks at all agents, own probes, checks of unchanged cards."""
        world, costs = self._world, self._world.costs
        looks = world.agents / world.refresh_s
        probes = looks / world.hubs if world.shares else looks
        self._work(at, hub, looks * costs.look_s + world.processes * costs.idle_s)
        if not world.has_stamps:
            self._work(at, hub, looks * costs.check_s)
            self._hub_bytes += looks * costs.news_bytes * 4
        for number in range(round(probes)):
            self._at(at + number / max(1, probes), partial(self._probe, hub))
        self._at(at + 1.0, partial(self._look, hub))

    def _probe(self, hub: int, at: float) -> None:
        self._probes += 1
        self._hub_bytes += self._world.costs.probe_bytes
        self._work(at, hub, self._world.costs.probe_s)

    def _beat(self, hub: int, at: float) -> None:
        self._exchange(hub, at)
        self._at(at + BEAT_S, partial(self._beat, hub))

    def _send_findings(self, hub: int, at: float) -> None:
        found = self._world.agents / self._world.hubs * SEND_S / self._world.refresh_s
        self._unsent[hub].append((at, found, False))
        self._wake(hub, at)
        self._at(at + SEND_S, partial(self._send_findings, hub))

    def _change(self, at: float) -> None:
        """A card is published: one hub reads it and tells the others."""
        world, costs = self._world, self._world.costs
        hub = self._draw.randrange(world.hubs)
        read_at = self._work(at, hub, costs.read_s)
        self._changes += 1
        self._change_bytes += costs.card_bytes
        if world.hubs > 1:
            self._left[at] = world.hubs - 1
            self._unsent[hub].append((at, 0.0, True))
            self._wake(hub, read_at)
        self._at(at + self._draw.expovariate(world.changes_per_s), self._change)

    def _wake(self, hub: int, at: float) -> None:
        """An exchange follows, once for all that happens within the time in which news are gathered."""
        if not self._is_due[hub]:
            self._is_due[hub] = True
            self._at(at + GATHER_S, partial(self._exchange, hub))

    def _exchange(self, hub: int, at: float) -> None:
        """Send and hear, and read the cards that others have found changed."""
        costs = self._world.costs
        self._is_due[hub] = False
        sent, self._unsent[hub] = self._unsent[hub], []
        heard, self._unheard[hub] = self._unheard[hub], []
        self._exchanges += 1
        asked_at = self._work(at, hub, costs.exchange_s)
        done_at = self._database.run(asked_at, costs.database_s + costs.row_s * (len(sent) + len(heard)))
        for other in range(self._world.hubs) if sent else ():
            if other != hub:
                self._unheard[other] += sent
                self._wake(other, done_at)
        for found_at, findings, is_change in heard:
            heard_bytes = costs.news_bytes + findings * costs.finding_bytes
            self._database_bytes += heard_bytes
            ended_at = self._work(
                done_at, hub, findings * costs.hear_s + (costs.read_s if is_change else 0.0)
            )
            if is_change:
                self._change_bytes += heard_bytes + costs.card_bytes
                self._left[found_at] -= 1
                if not self._left[found_at]:
                    del self._left[found_at]
                    self._converged.append(ended_at - found_at)

    def _result(self) -> Result:
        world, costs, sampled = self._world, self._world.costs, self._sampled
        total_s = world.seconds * world.processes
        waits = sorted(self._waits) or [0.0]
        return Result(
            hub_load=sum(hub.busy_s for hub in self._hubs[:sampled]) / sampled / total_s,
            background_load=sum(self._background_s[:sampled]) / sampled / total_s,
            database_load=self._database.busy_s / world.seconds / world.database_cores,
            p50_s=waits[len(waits) // 2],
            p99_s=waits[len(waits) * 99 // 100],
            converged_s=max(self._converged, default=0.0),
            exchanges_per_s=self._exchanges / world.seconds,
            probes_per_s=self._probes / world.seconds / sampled * world.hubs,
            hub_bytes_per_s=self._hub_bytes / sampled / world.seconds
            + self._database_bytes / world.hubs / world.seconds,
            database_bytes_per_s=self._database_bytes / world.seconds,
            bytes_per_change=self._change_bytes / max(1, self._changes),
            hub_memory_bytes=costs.base_bytes * world.processes
            + world.agents
            * (costs.agent_bytes * world.processes + (costs.word_bytes if world.hubs > 1 else 0)),
        )


def simulate(world: World) -> Result:
    """The result of a world, with a fixed seed."""
    return Simulation(world).run()
