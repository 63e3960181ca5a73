"""Four real members with 2,000 agents each, beside the prediction of the model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from benchmarks.figures import Figure
from benchmarks.simulation.costs import Costs, measure_costs
from benchmarks.simulation.members import Process, SmallServer, processes
from benchmarks.simulation.model import World, simulate
from tests.crash.postgres import Postgres

HUBS = 4
AGENTS = 2_000
REFRESH_S = 10.0
ROUNDS = 3
CHANGES = 5
WITHIN = 0.3
"""The prediction may be off by this share."""


def compare(postgres: Postgres) -> tuple[Costs, list[Figure]]:
    """The measured costs, and each measured figure with the share by which the prediction is off."""
    costs = asyncio.run(measure_costs(postgres))
    seconds = ROUNDS * REFRESH_S
    world = World(
        hubs=HUBS,
        processes=1,
        agents=AGENTS,
        calls_per_s=0.0,
        changes_per_s=0.0,
        refresh_s=REFRESH_S,
        seconds=seconds,
        costs=costs,
    )
    predicted = simulate(world)
    with SmallServer() as server:
        database = postgres.create_database()
        with processes(database, HUBS, server.url, AGENTS, REFRESH_S) as members:
            _wait_until_shared(members)
            before, asked = _cpu_s(members), server.count()
            time.sleep(seconds)
            cpu_s, probes = _cpu_s(members) - before, server.count() - asked
            late_s = max(_converge(members, number) for number in range(CHANGES))
    changing = simulate(
        World(
            hubs=HUBS,
            processes=1,
            agents=AGENTS,
            calls_per_s=0.0,
            changes_per_s=0.3,
            refresh_s=REFRESH_S,
            seconds=60.0,
            costs=costs,
        )
    )
    rows = [
        ("probes a second of 4 hubs with 2,000 agents", probes / seconds, predicted.probes_per_s, "/s"),
        ("processor of one hub", cpu_s / HUBS / seconds * 100, predicted.hub_load * 100, "%"),
        ("a change is at all hubs, at most", late_s, changing.converged_s, "s"),
    ]
    return costs, list(_render(rows))


def _render(rows: list[tuple[str, float, float, str]]) -> Iterator[Figure]:
    for name, measured, predicted, unit in rows:
        yield Figure(f"{name}, measured", measured, unit)
        yield Figure(f"{name}, predicted", predicted, unit)
        yield Figure("the prediction is off by", abs(predicted / measured - 1), "", target=WITHIN)


def _wait_until_shared(members: list[Process]) -> None:
    while not all(member.ask_cpu()["shared"] for member in members):
        time.sleep(0.5)
    time.sleep(REFRESH_S)


def _cpu_s(members: list[Process]) -> float:
    return sum(float(str(member.ask_cpu()["cpu_s"])) for member in members)


def _converge(members: list[Process], number: int) -> float:
    """How long after one hub has read a new card the last one has it."""
    name = f"late{number}"
    for member in members:
        member.send(name)
    members[0].send(f"read {name}")
    times = [float(str(member.read()["at"])) for member in members]
    return max(times) - times[0]
