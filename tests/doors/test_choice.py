"""Choice among agents of one skill, over real sockets: strategies, versions, labels, names, replicas."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from retinue.authoring.agent import Agent
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.rpc.probe import probe
from retinue.storage.state import State
from tests.requirements import requirement
from tests.system import WAIT_S, Hub, System, Wire, open_system


class Gate:
    """Holds calls up until so many of them are in flight at once, and it is opened."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._arrived = 0
        self.full = asyncio.Event()
        self._open = asyncio.Event()

    async def enter(self) -> None:
        self._arrived += 1
        if self._arrived == self._expected:
            self.full.set()
        await self._open.wait()

    async def open_when_full(self) -> None:
        await asyncio.wait_for(self.full.wait(), WAIT_S)
        self._open.set()


def answering(
    name: str,
    answer: str,
    *,
    version: str = "1.0.0",
    labels: Mapping[str, str] | None = None,
    gate: Gate | None = None,
) -> Agent:
    """An agent whose skill ``who`` gives ``answer``, once ``gate`` lets it."""
    agent = Agent(name, version=version, labels=labels)

    @agent.skill(read_only=True)
    async def who() -> str:
        if gate is not None:
            await gate.enter()
        return answer

    return agent


async def ask(wire: Wire, hub: Hub, **params: Any) -> str:
    return str((await wire.call(hub.url, "call_skill", {"skill": "who", **params})).result)


async def listed(wire: Wire, hub: Hub) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (await wire.call(hub.url, "list_agents", {"detailed": True})).result[
        "agents"
    ]
    return rows


async def found(wire: Wire, hub: Hub, **params: Any) -> list[str]:
    reply = await wire.call(hub.url, "find_skills", params)
    return [row["agent"] for row in reply.result["skills"] if row["skill"] == "who"]


@requirement("P-18")
@requirement("P-30")
@pytest.mark.parametrize(
    ("strategy", "asked"),
    [
        ("first", ["a", "a", "a", "a"]),
        ("round-robin", ["a", "b", "a", "b"]),
        ("least-connections", ["a", "a", "a", "a"]),
    ],
)
async def test_the_setting_says_who_is_asked(
    retinue_home: Path, wire: Wire, strategy: str, asked: list[str]
) -> None:
    async with open_system(State(retinue_home), routing={"strategy": strategy}) as system:
        for name in "ab":
            await system.start_agent(answering(f"{name}-agent", name))
        hub = await system.start_hub()
        assert [(await wire.call(hub.url, "who")).result for _ in range(4)] == asked


@requirement("P-18")
async def test_calls_at_once_are_shared_by_the_agents_of_a_skill(system: System, wire: Wire) -> None:
    gate = Gate(12)
    for name in "abc":
        await system.start_agent(answering(f"{name}-agent", name, gate=gate))
    hub = await system.start_hub()
    calls = [asyncio.create_task(wire.call(hub.url, "who")) for _ in range(12)]
    await gate.open_when_full()
    assert Counter([(await call).result for call in calls]) == {"a": 4, "b": 4, "c": 4}


@requirement("P-30")
@pytest.mark.parametrize(
    ("strategy", "shares"), [("least-connections", {"a": 4, "b": 4, "c": 4}), ("first", {"a": 12})]
)
async def test_calls_in_flight_decide_who_is_asked_next(
    retinue_home: Path, wire: Wire, strategy: str, shares: dict[str, int]
) -> None:
    """Twelve calls, none of which ends before all have arrived: only the strategy can share them."""
    async with open_system(State(retinue_home), routing={"strategy": strategy}) as system:
        gate = Gate(12)
        for name in "abc":
            await system.start_agent(answering(f"{name}-agent", name, gate=gate))
        hub = await system.start_hub()
        calls = [asyncio.create_task(wire.call(hub.url, "who")) for _ in range(12)]
        await gate.open_when_full()
        assert Counter([(await call).result for call in calls]) == shares


@requirement("P-30")
async def test_the_agent_with_the_fewest_calls_in_flight_is_asked(retinue_home: Path, wire: Wire) -> None:
    """A call that hangs at the first agent sends the next ones, one after the other, to the second."""
    async with open_system(State(retinue_home), routing={"strategy": "least-connections"}) as system:
        gate = Gate(1)
        await system.start_agent(answering("a-agent", "a", gate=gate))
        await system.start_agent(answering("b-agent", "b"))
        hub = await system.start_hub()
        hanging = asyncio.create_task(wire.call(hub.url, "who"))
        await asyncio.wait_for(gate.full.wait(), WAIT_S)
        assert [(await wire.call(hub.url, "who")).result for _ in range(3)] == ["b", "b", "b"]
        await gate.open_when_full()
        assert (await hanging).result == "a"
        assert (await wire.call(hub.url, "who")).result == "a"


async def test_what_was_measured_is_shown_with_the_agent(system: System, wire: Wire) -> None:
    await system.start_agent(answering("a-agent", "a"))
    hub = await system.start_hub()
    for _ in range(3):
        await wire.call(hub.url, "who")
    shown = (await wire.call(hub.url, "show_agent", {"name": "a-agent"})).result["listing"]
    assert shown["status"] == "available"
    assert shown["metrics"].pop("avgResponseTime") >= 0
    assert shown["metrics"] == {"successRate": 1.0, "totalRequests": 3}
    assert "metrics" not in (await listed(wire, hub))[0]


@requirement("P-30")
async def test_a_version_range_chooses_among_agents(system: System, wire: Wire) -> None:
    for name, version in (("old", "1.1.0"), ("fit", "v1.4"), ("new", "2.0.0")):
        await system.start_agent(answering(f"{name}-agent", name, version=version))
    hub = await system.start_hub()
    assert await found(wire, hub, skill="who", version=">=1.2,<2") == ["fit-agent"]
    assert await ask(wire, hub, version=">=1.2,<2") == "fit"
    refused = await wire.call(hub.url, "call_skill", {"skill": "who", "version": ">=3"})
    assert refused.error["data"]["type"] == "version_conflict"


@requirement("P-30")
async def test_labels_filter_what_is_found_by_id_and_by_words(system: System, wire: Wire) -> None:
    await system.start_agent(answering("a-agent", "a", labels={"team": "search", "tier": "1"}))
    await system.start_agent(answering("b-agent", "b", labels={"team": "ads"}))
    await system.start_agent(answering("c-agent", "c"))
    hub = await system.start_hub()
    for asked in ({"skill": "who"}, {}):
        assert await found(wire, hub, labels={"team": "search"}, **asked) == ["a-agent"]
        assert sorted(await found(wire, hub, labels={"team": "*"}, **asked)) == ["a-agent", "b-agent"]
        assert await found(wire, hub, labels={"team": "ads", "tier": "1"}, **asked) == []


@pytest.fixture
async def two_sources(retinue_home: Path, tmp_path: Path) -> AsyncIterator[tuple[System, LayoutRegistry]]:
    far = tmp_path / "far"
    async with open_system(State(retinue_home), registries=(str(far),)) as system:
        yield system, LayoutRegistry(far)


@requirement("P-18")
async def test_two_cards_of_one_name_and_url_are_one_agent(
    two_sources: tuple[System, LayoutRegistry], wire: Wire
) -> None:
    system, far = two_sources
    here = await system.start_agent(answering("plan-agent", "here"))
    await system.start_agent(answering("plan-agent", "there"), publish_to=far, shown_url=f"{here.url}/")
    hub = await system.start_hub()
    rows = await listed(wire, hub)
    assert [(row["name"], row["source"]) for row in rows] == [("plan-agent", "home")]
    assert await found(wire, hub, skill="who") == ["plan-agent"]


@requirement("P-18")
async def test_two_agents_of_one_name_stand_side_by_side_and_each_has_a_name_of_its_own(
    two_sources: tuple[System, LayoutRegistry], wire: Wire
) -> None:
    system, far = two_sources
    here = await system.start_agent(answering("plan-agent", "here"))
    await system.start_agent(answering("plan-agent", "there"), publish_to=far)
    hub = await system.start_hub()
    assert len(await listed(wire, hub)) == 2
    _, there = (row["source"] for row in await listed(wire, hub))
    assert await ask(wire, hub, agent=f"plan-agent@{there}") == "there"
    assert await ask(wire, hub, agent="plan-agent@home") == "here"
    # either may take a call; when one is dead, all go to the other
    await here.stop()
    assert [(await wire.call(hub.url, "who")).result for _ in range(3)] == ["there"] * 3


@asynccontextmanager
async def balancer(ports: list[int]) -> AsyncIterator[str]:
    """One url for several replicas: each connection goes to the next one that lives."""
    turns = 0

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal turns
        for _ in ports:
            turns += 1
            with contextlib.suppress(OSError):
                upstream = await asyncio.open_connection("127.0.0.1", ports[turns % len(ports)])
                await asyncio.gather(pump(reader, upstream[1]), pump(upstream[0], writer))
                return
        writer.close()

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await source.read(65536):
                target.write(piece)
                await target.drain()
        target.close()

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@requirement("P-18")
async def test_replicas_behind_one_url_are_one_agent_and_any_of_them_answers(
    retinue_home: Path, wire: Wire
) -> None:
    gate, ports = Gate(8), list[int]()
    # the port of the balancer is none of theirs, so they are told that it leads to them
    behind = open_system(State(retinue_home), doors={"hosts": ["127.0.0.1"]})
    async with behind as system, balancer(ports) as url:
        replicas = [
            await system.start_agent(answering("plan-agent", str(n), gate=gate), shown_url=url)
            for n in range(2)
        ]
        ports += [int(replica.url.rpartition(":")[2]) for replica in replicas]
        hub = await system.start_hub()
        assert [row["name"] for row in await listed(wire, hub)] == ["plan-agent"]
        calls = [asyncio.create_task(wire.call(hub.url, "who")) for _ in range(8)]
        await gate.open_when_full()
        assert {(await call).result for call in calls} == {"0", "1"}
        await replicas[0].stop()
        assert {(await wire.call(hub.url, "who")).result for _ in range(5)} == {"1"}
        assert [row["status"] for row in await listed(wire, hub)] == ["available"]


@requirement("P-30")
async def test_dead_degraded_and_wrong_agents_are_listed_with_since_when_and_why(
    system: System, wire: Wire
) -> None:
    dead = await system.start_agent(answering("dead-agent", "dead"))
    alive = await system.start_agent(answering("live-agent", "live"))
    await system.start_agent(answering("wrong-agent", "wrong"), shown_url=alive.url)
    hub = await system.start_hub()
    await dead.stop()
    directory, agent_stats = hub.mesh.directory, hub.mesh.dispatcher.agent_stats
    await directory.refresh()
    await probe(directory, agent_stats, directory.list_all(), hub.mesh.peers.http, timeout_s=5)
    rows = {row["name"]: row for row in await listed(wire, hub)}
    assert {name: row["status"] for name, row in rows.items()} == {
        "dead-agent": "unavailable",
        "live-agent": "available",
        "wrong-agent": "unavailable",
    }
    assert all(row["since"] for row in rows.values())
    assert rows["wrong-agent"]["last_error"] == "another agent answers there: live-agent"
    assert rows["dead-agent"]["last_error"]
    assert "last_error" not in rows["live-agent"]
    assert (await wire.call(hub.url, "who")).result == "live"
