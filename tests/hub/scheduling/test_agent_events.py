"""Changes of agents start workflows, once at any number of hubs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from retinue.core.errors import (
    RegistryUnreachableError,
    RepeatedEventError,
    RetinueError,
    StateError,
)
from retinue.core.record import Listing
from retinue.hub.scheduling.agent_events import AgentEvents, name_event
from retinue.hub.scheduling.events import EventStarter
from retinue.hub.scheduling.trigger_book import TriggerBook
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.permissions import Access
from retinue.web.security import LOCAL_TOKEN
from retinue.workflows.triggers import StoredTrigger, TriggerProgress
from tests.hub.scheduling.bench import TOKEN, WORK, Node, ScheduleBench, make_agent

ON_AGENT = f"on: {{agent: {{event: [joined, left, unreachable, healthy], name: 'a-*'}}}}\n{WORK}"


def listing(name: str) -> Listing:
    record = replace(make_agent().record("http://127.0.0.1:9"), name=name)
    return Listing(record, source="home", key=name, tag="v1", digest=f"sha256:{name}", raw=b"{}")


class Hub:
    """A hub with a directory of its own, which follows its agents."""

    def __init__(self, bench: ScheduleBench, node: Node) -> None:
        self.node = node
        self.directory = Directory(MemoryListings())
        starter = EventStarter(node.firing, clock=bench.read_clock)
        self.events = AgentEvents(
            self.directory, Access(), node.open_triggers, starter, clock=bench.read_clock
        )
        self.book = TriggerBook(
            node.open_triggers, node.firing, list_agents=self.events.list_states, clock=bench.read_clock
        )
        self.directory.subscribe(
            lambda change: self.events._remember(change.entry.name, change.kind == "added")
        )

    async def look(self) -> None:
        # the news of the directory are passed on in the loop
        await asyncio.sleep(0)
        await self.events.look()

    def publish(self, name: str) -> None:
        self.directory.upsert(listing(name))

    def withdraw(self, name: str) -> None:
        entry = self.directory.find_named(name)
        assert entry is not None
        self.directory.remove(entry.id)

    def mark(self, name: str, health: Any) -> None:
        entry = self.directory.find_named(name)
        assert entry is not None
        self.directory.record_health(entry, health, "refused")


async def list_events(bench: ScheduleBench) -> list[tuple[str, str]]:
    """The events in the order of their runs."""
    records = [await bench.runs.finish(run) for run in await bench.list_runs()]
    return [(record.request.input["event"], record.request.input["agent"]) for record in records]


async def test_agents_that_come_go_and_fail_start_one_run_each(bench: ScheduleBench) -> None:
    hub = Hub(bench, bench.node(ON_AGENT))
    hub.publish("a-old")
    row = await hub.book.add(LOCAL_TOKEN, "nightly", None, None, None)
    assert (row["on"], row["name"]) == ("agent", "a-*")
    changes: list[Callable[[], None]] = [
        lambda: hub.publish("a-new"),
        lambda: hub.publish("b-new"),
        lambda: hub.mark("a-new", "healthy"),
        lambda: hub.mark("a-new", "degraded"),
        lambda: hub.mark("a-new", "unreachable"),
        lambda: hub.mark("a-new", "unreachable"),
        lambda: hub.mark("a-new", "healthy"),
        lambda: hub.withdraw("a-old"),
    ]
    for change in changes:
        change()
        await hub.look()
        bench.now += 1
    assert await list_events(bench) == [
        ("joined", "a-new"),
        ("unreachable", "a-new"),
        ("healthy", "a-new"),
        ("left", "a-old"),
    ]


async def test_two_hubs_that_notice_one_change_start_one_run(bench: ScheduleBench) -> None:
    first, second = (Hub(bench, bench.node(ON_AGENT, home=home)) for home in ("one", "two"))
    await first.book.add(LOCAL_TOKEN, "nightly", None, None, None)
    for hub in (first, second):
        hub.publish("a-new")
    for hub in (first, second, first):
        await hub.look()
        bench.now += 1
    for hub in (second, first):
        hub.mark("a-new", "unreachable")
        await hub.look()
        bench.now += 1
    assert await list_events(bench) == [("joined", "a-new"), ("unreachable", "a-new")]


async def test_a_hub_that_dies_before_the_run_leaves_the_event_to_another(
    bench: ScheduleBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying, survivor = (Hub(bench, bench.node(ON_AGENT, home=home)) for home in ("one", "two"))
    await dying.book.add(LOCAL_TOKEN, "nightly", None, None, None)

    class KilledError(BaseException):
        pass

    async def die(*_: Any, **__: Any) -> Any:
        raise KilledError

    monkeypatch.setattr(dying.node.starter, "start", die)
    dying.publish("a-new")
    with pytest.raises(KilledError):
        await dying.look()
    assert await bench.list_runs() == []
    bench.now += 1
    await survivor.look()
    await survivor.look()
    assert await list_events(bench) == [("joined", "a-new")]


async def test_a_trigger_of_a_token_waits_for_the_hub_that_knows_it(bench: ScheduleBench) -> None:
    home, elsewhere = (Hub(bench, bench.node(ON_AGENT, home=place)) for place in ("one", "two"))
    await home.book.add(TOKEN, "nightly", None, None, None)
    elsewhere.publish("a-new")
    await elsewhere.look()
    assert await bench.list_runs() == []
    await home.look()
    assert await list_events(bench) == [("joined", "a-new")]


async def test_changes_during_a_pause_start_nothing_afterwards(bench: ScheduleBench) -> None:
    hub = Hub(bench, bench.node(ON_AGENT))
    await hub.book.add(LOCAL_TOKEN, "nightly", None, None, None)
    await hub.book.change(LOCAL_TOKEN, "nightly", "pause")
    hub.publish("a-new")
    await hub.look()
    await hub.book.change(LOCAL_TOKEN, "nightly", "resume")
    await hub.look()
    assert await bench.list_runs() == []
    hub.withdraw("a-new")
    await hub.look()
    assert await list_events(bench) == [("left", "a-new")]


async def test_the_events_of_a_trigger_that_was_added_again_start_runs_of_their_own(
    bench: ScheduleBench,
) -> None:
    hub = Hub(bench, bench.node(ON_AGENT))
    for _ in range(2):
        await hub.book.add(LOCAL_TOKEN, "nightly", None, None, None)
        hub.publish("a-new")
        await hub.look()
        await hub.book.change(LOCAL_TOKEN, "nightly", "remove")
        hub.withdraw("a-new")
        await hub.look()
        bench.now += 1
    assert await list_events(bench) == [("joined", "a-new")] * 2


async def test_a_trigger_that_fails_takes_its_changes_in_later_and_keeps_no_other_from_them(
    bench: ScheduleBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(bench, bench.node(ON_AGENT))
    for name in ("first", "second"):
        await hub.book.add(LOCAL_TOKEN, "nightly", name, None, None)
    hub.publish("a-new")
    with monkeypatch.context() as patched:
        change = hub.node.trigger_table.change

        async def break_first(trigger: StoredTrigger, progress: TriggerProgress) -> bool:
            if trigger.name == "first":
                raise StateError("the database does not answer", remedy="")
            return await change(trigger, progress)

        patched.setattr(hub.node.trigger_table, "change", break_first)
        await hub.look()
    assert [run.partition(":")[0] for run in await bench.list_runs()] == ["second"]
    await hub.look()
    assert sorted(run.partition(":")[0] for run in await bench.list_runs()) == ["first", "second"]


@pytest.mark.parametrize(
    "error",
    [
        RegistryUnreachableError("http://home.example", "refused"),
        StateError("the database does not answer", remedy=""),
        RepeatedEventError("e", "r"),
    ],
)
async def test_an_event_whose_run_may_be_started_later_waits(
    bench: ScheduleBench, monkeypatch: pytest.MonkeyPatch, error: RetinueError
) -> None:
    hub = Hub(bench, bench.node(ON_AGENT))
    await hub.book.add(LOCAL_TOKEN, "nightly", None, None, None)
    hub.publish("a-new")

    async def fail(*_: Any, **__: Any) -> Any:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(hub.events._starter, "start", fail)
        await hub.look()
    assert await bench.list_runs() == []
    bench.now += 1
    await hub.look()
    await hub.look()
    assert await list_events(bench) == [("joined", "a-new")]


async def test_an_event_that_was_claimed_without_a_run_gets_its_run(
    bench: ScheduleBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(bench, bench.node(ON_AGENT))
    await hub.book.add(LOCAL_TOKEN, "nightly", None, None, None)
    hub.publish("a-new")
    table = hub.node.trigger_table
    claim = table.claim

    async def claim_twice(*given: Any, **options: Any) -> Any:
        # as when the database does not answer the commit, and the claim is repeated
        await claim(*given, **options)
        return await claim(*given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(table, "claim", claim_twice)
        await hub.look()
    assert await bench.list_runs() == []
    bench.now += 1
    await hub.look()
    assert await list_events(bench) == [("joined", "a-new")]


@pytest.mark.parametrize(
    ("before", "after", "was_added", "event"),
    [
        (None, "present", True, "joined"),
        (None, "healthy", False, None),
        ("healthy", None, False, "left"),
        ("present", "healthy", False, None),
        ("present", "unreachable", False, "unreachable"),
        ("unreachable", "healthy", False, "healthy"),
        ("unreachable", "present", False, None),
    ],
)
def test_a_change_of_state_is_an_event_or_none(
    before: str | None, after: str | None, was_added: bool, event: str | None
) -> None:
    assert name_event(before, after, was_added=was_added) == event
