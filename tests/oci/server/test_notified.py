"""Notified repositories are read again: in the right source, once for many events, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from retinue.core.errors import BusyError
from retinue.core.record import AgentRecord, Listing
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.oci.codec.notifications import RegistryEvent
from retinue.oci.server.webhooks import AGAIN_S, MAX_WAITING, Notifications
from tests.requirements import requirement
from tests.support.memory_source import MemorySource

ONE, TWO, HOME = "http://one:5000", "https://two.example", "home"
WAIT_S = 60.0


class SlowSource(MemorySource):
    """Answers when it is let, and counts."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.asked: list[str] = []
        self.started = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def read_key(self, key: str) -> Sequence[Listing]:
        self.asked.append(key)
        self.started.set()
        held = await super().read_key(key)
        await self.gate.wait()
        return held


@dataclass
class Bench:
    directory: Directory
    notifications: Notifications
    sources: dict[str, SlowSource] = field(default_factory=dict)

    async def settle(self) -> None:
        async with asyncio.timeout(WAIT_S):
            while workers := self.notifications.pending:
                await asyncio.wait(workers)

    @property
    def asked(self) -> dict[str, list[str]]:
        return {name: source.asked for name, source in self.sources.items() if source.asked}


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with open_bench() as opened:
        yield opened


@asynccontextmanager
async def open_bench(again_s: Sequence[float] = AGAIN_S) -> AsyncIterator[Bench]:
    sources = {name: SlowSource(name) for name in (HOME, ONE, TWO)}
    directory = Directory(MemoryListings(), list(sources.values()))
    await directory.refresh()
    notifications = Notifications(directory, sources, again_s=again_s)
    yield Bench(directory, notifications, sources)
    await notifications.aclose()
    await directory.aclose()


def listing(key: str, source: str = ONE) -> Listing:
    return Listing(record=AgentRecord(key.removeprefix("agents/"), "1.0.0"), source=source, key=key)


def push(repository: str = "agents/plan", host: str = "one:5000") -> RegistryEvent:
    return RegistryEvent("push", repository, "v1", None, frozenset({host}))


@requirement("P-30")
async def test_only_the_source_with_the_event_s_host_is_asked(bench: Bench) -> None:
    bench.sources[ONE].put(listing("agents/plan"))
    bench.notifications.take([push()])
    await bench.settle()
    assert bench.asked == {ONE: ["agents/plan"]}
    assert bench.directory.get("plan").source == ONE


async def test_an_unknown_host_makes_all_registries_be_asked_but_no_folder(bench: Bench) -> None:
    bench.notifications.take([push(host="registry:5000")])
    await bench.settle()
    assert bench.asked == {ONE: ["agents/plan"], TWO: ["agents/plan"]}


async def test_a_deletion_takes_the_agent_out(bench: Bench) -> None:
    bench.directory.upsert(listing("agents/plan"))
    bench.notifications.take([RegistryEvent("delete", "agents/plan", hosts=frozenset({"one:5000"}))])
    await bench.settle()
    assert bench.directory.find("plan") is None


async def test_workflows_are_not_read(bench: Bench) -> None:
    bench.notifications.take([push("workflows/ship")])
    await bench.settle()
    assert bench.asked == {}


async def test_many_events_of_one_repository_are_one_more_read(bench: Bench) -> None:
    source = bench.sources[ONE]
    source.gate.clear()
    bench.notifications.take([push()])
    await asyncio.wait_for(source.started.wait(), WAIT_S)
    source.put(listing("agents/plan"))
    for _ in range(50):
        bench.notifications.take([push(), push()])
    source.gate.set()
    await bench.settle()
    assert source.asked == ["agents/plan"] * 2
    assert bench.directory.find("plan") is not None


async def test_too_many_repositories_are_refused_and_those_noted_are_read(bench: Bench) -> None:
    bench.notifications.take([push(f"agents/a{number}") for number in range(MAX_WAITING)])
    with pytest.raises(BusyError):
        bench.notifications.take([push("agents/one-more")])
    await bench.settle()
    assert len(set(bench.sources[ONE].asked)) == MAX_WAITING


async def test_one_that_fails_keeps_no_other_from_being_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = bench.sources[ONE].read_key

    async def read_key(key: str) -> Sequence[Listing]:
        if key == "agents/bad":
            raise ValueError("unforeseen")
        return await read(key)

    monkeypatch.setattr(bench.sources[ONE], "read_key", read_key)
    bench.sources[ONE].put(listing("agents/plan"))
    bench.notifications.take([push("agents/bad"), push()])
    await bench.settle()
    assert bench.directory.find("plan") is not None


async def test_an_event_that_comes_before_its_effect_is_looked_for_again(bench: Bench) -> None:
    source, digest = bench.sources[ONE], "sha256:" + "a" * 64
    told = RegistryEvent("push", "agents/plan", "v1", digest, frozenset({"one:5000"}))
    bench.notifications.take([told])
    await asyncio.wait_for(source.started.wait(), WAIT_S)
    source.put(replace(listing("agents/plan"), digest=digest))
    await bench.settle()
    assert bench.directory.find("plan") is not None
    source.asked.clear()
    source.started.clear()
    bench.notifications.take([replace(told, action="delete", tag=None)])
    await asyncio.wait_for(source.started.wait(), WAIT_S)
    source.remove("agents/plan")
    await bench.settle()
    assert bench.directory.find("plan") is None
    assert source.asked == ["agents/plan"] * 2


async def test_what_never_shows_is_looked_for_a_few_times_only() -> None:
    event = RegistryEvent("push", "agents/plan", "v1", "sha256:" + "a" * 64, frozenset({"one:5000"}))
    async with open_bench(again_s=(0.001, 0.001)) as bench:
        bench.notifications.take([event])
        await bench.settle()
        assert bench.asked == {ONE: ["agents/plan"] * 3}
