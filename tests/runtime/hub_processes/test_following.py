"""A process of a hub follows its leader: directory, health, single keys, audit rows."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from retinue.approvals.records import ApprovalRequest, MemoryApprovals
from retinue.authoring.agent import Agent
from retinue.core.call import Call, Outcome, Principal, TraceContext
from retinue.core.errors import BusyError, UnknownApprovalError
from retinue.core.record import Listing
from retinue.core.trust import Trust
from retinue.mesh import slices
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.sources import Give, Reading, Source
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.health.agent_stats import AgentStatsTable
from retinue.mesh.history.records import Hashes
from retinue.mesh.history.search_history import SearchHistory
from retinue.mesh.observing.call_figures import CallFigures
from retinue.mesh.observing.events import CallEndedEvent, EventBus
from retinue.parts.process import Process
from retinue.policies.counts import Count, MemoryCounts
from retinue.policies.decision_figures import DecisionFigures
from retinue.runtime.hub_processes import follower as follower_module
from retinue.runtime.hub_processes.follower import DirectoryFollower, Leader, list_followed
from retinue.runtime.hub_processes.forwarding import Forwarder
from retinue.runtime.hub_processes.leader import MAX_UNTOLD, LeaderExchange
from retinue.runtime.hub_processes.led_history import LedHistory
from retinue.runtime.hub_processes.led_policies import LedApprovals, LedCounts, answer_policies
from retinue.runtime.hub_processes.place import HubPlace
from retinue.runtime.parts.audit import AuditLog
from retinue.runtime.serving import HttpServer, Stop
from retinue.storage.audit_store import SqliteAudit
from retinue.storage.history_store import FileDatabase, SqlHistory
from retinue.storage.listing_store import SqliteListings
from tests.mesh.scripted import make_listing
from tests.system import WAIT_S

_LARGE = 2**70
"""An integer that orjson does not take."""


class Shelf(Source):
    """A source whose listings a test sets."""

    name = "home"
    trust = Trust.OWN_MESH

    def __init__(self) -> None:
        self.listings: list[Listing] = []

    async def read_all(self, give: Give | None = None, *, thorough: bool = True) -> Reading:
        return Reading(tuple(self.listings))

    async def read_key(self, key: str) -> Sequence[Listing]:
        return [listing for listing in self.listings if listing.key == key]


@dataclass
class Hub:
    """A leader and a process that follows it."""

    shelf: Shelf
    led: Directory
    led_stats: AgentStatsTable
    figures: CallFigures
    rows: list[Any]
    followed: Directory
    stats: AgentStatsTable
    leader: Leader
    follower: DirectoryFollower
    exchange: LeaderExchange
    history: SearchHistory


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    shelf, rows = Shelf(), list[Any]()
    shelf.listings = [make_listing("first", digest="1", url="http://127.0.0.1:1")]
    async with AsyncExitStack() as stack:
        store = SqliteListings(tmp_path / "retinue.db")
        stack.callback(store.close)
        led = Directory(store, [shelf])
        await led.refresh()
        dispatcher = Dispatcher(
            agent="retinue", lookup=led, invoker_of=cast(Any, None), health_sink=led.record_health
        )
        figures = CallFigures()
        history = SearchHistory(led.find_skill, led.find_named)
        stored = SqlHistory(FileDatabase(tmp_path / "history.db", tmp_path))
        history.open(stored, Hashes(b"k" * 64), "text", lambda: None)
        process = cast(Process, _Parts(dispatcher, [led, figures, history, AuditLog(rows.append)]))
        inner = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        place = HubPlace(1, 2, tmp_path, "hub-1", 0, 0, 0)
        inner.bind(place.socket_of(0))
        inner.listen()
        exchange = LeaderExchange(process)
        await stack.enter_async_context(HttpServer(exchange).running((inner,), Stop()))
        forwarder = Forwarder(place)
        leader = Leader(lambda: forwarder.session(0))
        own = SqliteListings(tmp_path / "retinue.db", follows=True)
        stack.callback(own.close)
        followed = Directory(own, list_followed([shelf], leader, own))
        stats = AgentStatsTable()
        follower = DirectoryFollower(followed, own, stats, lambda: forwarder.session(0))
        tasks = [asyncio.create_task(follower.run()), asyncio.create_task(leader.send_notes())]
        await asyncio.wait_for(follower.is_current.wait(), WAIT_S)
        yield Hub(
            shelf,
            led,
            dispatcher.agent_stats,
            figures,
            rows,
            followed,
            stats,
            leader,
            follower,
            exchange,
            history,
        )
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await forwarder.aclose()


class _Parts:
    """A process that has a dispatcher and some products."""

    def __init__(self, dispatcher: Dispatcher, products: list[object]) -> None:
        self.dispatcher = dispatcher
        self.agent = Agent("retinue")
        self._products = {type(product): product for product in products}

    def find(self, kind: type[Any]) -> Any:
        return self._products.get(kind)

    get = find


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_process_has_the_agents_of_its_leader_and_hears_of_changes(hub: Hub) -> None:
    assert [entry.name for entry in hub.followed.list_entries()] == ["first"]
    second = make_listing("second", digest="2", url="http://127.0.0.1:2")
    hub.shelf.listings.append(second)
    await hub.led.refresh()
    await _until(lambda: hub.followed.find_named("second") is not None)
    hub.led.set_enabled(second, False)
    await _until(lambda: not hub.followed.get("second").enabled)
    hub.shelf.listings.remove(second)
    await hub.led.refresh()
    await _until(lambda: hub.followed.find_named("second") is None)


async def test_what_one_process_learns_of_an_agent_all_know(hub: Hub) -> None:
    (entry,) = hub.followed.list_entries()
    hub.leader.note_health(entry, "unreachable", "connection refused", is_open=True)
    await _until(lambda: hub.led.get("first").health == "unreachable")
    assert hub.led_stats.of(entry).breaker.is_open
    await _until(lambda: hub.stats.of(entry).breaker.is_open)
    await _until(lambda: hub.followed.get("first").health == "unreachable")
    hub.stats.of(entry).probe_failed("connection refused", certain=True)
    hub.led.mark_reachable(hub.led.list_entries()[0])
    await _until(lambda: hub.followed.get("first").health == "healthy")
    assert hub.stats.of(entry).health == "healthy"
    assert not hub.stats.of(entry).breaker.is_open


async def test_a_process_follows_its_leader_after_a_long_line_of_news(hub: Hub) -> None:
    heard: list[str] = []
    hub.follower.on_news["long"] = heard.append
    hub.exchange.tell("long", "x" * 2_000_000)
    hub.exchange.tell("long", "next")
    await _until(lambda: len(heard) == 2)
    assert (len(heard[0]), heard[1]) == (2_000_000, "next")


async def test_a_process_with_more_news_than_are_kept_asks_for_the_whole_state(hub: Hub) -> None:
    states: list[int] = []
    hub.follower.on_news["number"] = states.append
    hub.exchange.state_now["number"] = lambda: MAX_UNTOLD + 1
    for number in range(MAX_UNTOLD + 1):  # none is sent meanwhile, as if the process was stopped
        hub.exchange.tell("number", number)
    await _until(lambda: states != [])
    assert states == [MAX_UNTOLD + 1]
    hub.exchange.tell("number", 7)
    await _until(lambda: states[1:] == [7])


async def test_a_card_is_read_again_by_the_leader(hub: Hub) -> None:
    moved = make_listing("first", digest="3", url="http://127.0.0.1:3")
    hub.shelf.listings = [moved]
    (entry,) = hub.followed.list_entries()
    listing = await hub.followed.reread(entry)
    assert listing is not None
    assert listing.record.url == "http://127.0.0.1:3"
    assert hub.led.get("first").record.url == "http://127.0.0.1:3"


async def test_rows_of_calls_are_recorded_and_counted_by_the_leader(hub: Hub) -> None:
    row = {"type": "CALL:ENDED", "agent": "first", "status": "done", "duration_ms": 20.0}
    for number in range(3):
        hub.leader.append_row({**row, "id": str(number)})
    await _until(lambda: len(hub.rows) == 3)
    assert hub.figures.find("first").calls == 3


async def test_of_a_full_queue_the_oldest_rows_are_lost_and_none_that_came_while_others_were_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follower_module, "ROWS_KEPT", 4)
    monkeypatch.setattr(follower_module, "ROWS_AT_ONCE", 2)
    sent: list[str] = []
    fails = True
    leader = Leader(lambda: cast(Any, None))

    def add(*names: str) -> None:
        for name in names:
            leader.append_inputs({"call": name})

    async def send(path: str, body: bytes) -> None:
        if fails:
            add("5")
            raise OSError("it is away")
        names = [orjson.loads(row)["call"] for row in orjson.loads(body)]
        add(*(["6", "7"] if not sent else []))
        sent.extend(names)

    monkeypatch.setattr(leader, "_send", send)
    add("1", "2", "3", "4")
    await leader.flush()
    fails = False
    await leader.flush()
    assert sent == ["2", "3", "4", "5", "6", "7"]


@pytest.mark.parametrize("is_told", [True, False], ids=["after its message", "before its message"])
async def test_the_history_of_the_leader_knows_what_came_of_calls_in_other_processes(
    is_told: bool, hub: Hub, tmp_path: Path
) -> None:
    (entry,) = hub.led.list_entries()
    caller = Principal("token:anna", "token", frozenset({"mesh"}))
    searches = [hub.history.note_search(caller, text, [(entry, "create_plan")]) for text in ("plan", "trip")]
    history, reached = LedHistory(EventBus()), [9]  # no process has this number
    forwarder = Forwarder(HubPlace(1, 2, tmp_path, "hub-1", 0, 0, 0))
    leader = Leader(lambda: forwarder.session(reached[0]))
    leader.history = history
    call = Call("c1", "create_plan", {}, caller, "mcp", TraceContext("t1"))
    ended = CallEndedEvent(call, Outcome("c1", "create_plan", "done", "first"), datetime.now(UTC))
    history.observe(ended)
    assert not history, "the leader has no searches"
    if is_told:
        history.watch(True)
    history.expect("t1", "create_plan", str(searches[0]))
    history.observe(ended)
    for index in (9, 0):
        reached[0] = index
        await leader.flush()
    (record,) = hub.history.list_records()
    assert (record.key.agent, record.key.skill, record.verdict) == ("first", "create_plan", "done")
    assert record.id.startswith(str(searches[0])), "the call names its search"
    await forwarder.aclose()


async def test_what_the_leader_did_not_take_is_sent_again(hub: Hub, tmp_path: Path) -> None:
    (entry,) = hub.followed.list_entries()
    reached, figures = [9], DecisionFigures()  # no process has this number
    forwarder = Forwarder(HubPlace(1, 2, tmp_path, "hub-1", 0, 0, 0))
    leader = Leader(lambda: forwarder.session(reached[0]))
    leader.find_decisions = lambda: figures
    figures.add([[["permit", "few", 2]], [["few", "permit", 2]]])
    leader.append_row({"type": "CALL:ENDED", "agent": "first", "status": "done"})
    for _ in range(2):
        await leader.flush()
        assert figures.hits == {("few", "permit"): 2}
        leader.note_health(entry, "unreachable", "connection refused", is_open=False)
    await leader.flush()
    reached[0] = 0
    await leader.flush()
    assert figures.take() == [[], []]
    assert len(hub.rows) == 1
    assert hub.led.get("first").health == "unreachable"
    await forwarder.aclose()


async def test_a_process_that_missed_changes_reads_all_of_them(hub: Hub, tmp_path: Path) -> None:
    first = hub.shelf.listings[0]
    hub.followed.remove(first.id)
    hub.followed.upsert(replace(make_listing("stale", digest="9"), key="agents/stale"))
    await hub.follower.read_all()
    assert [entry.name for entry in hub.followed.list_entries()] == ["first"]


async def test_calls_are_answered_while_a_process_reads_what_the_next_leader_has(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = 100
    hub.shelf.listings += [make_listing(f"a{number}", digest=str(number)) for number in range(agents)]
    await hub.led.refresh()
    await hub.follower.read_all()
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    reading = asyncio.create_task(hub.follower.read_all())
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 2 * agents, "one after each agent that is stored, and after each that is listed"
    await reading


async def test_limits_and_approvals_are_kept_by_the_leader_for_all_processes(hub: Hub) -> None:
    counts, approvals, inputs = MemoryCounts(), MemoryApprovals(), list[Any]()

    async def open_counts() -> MemoryCounts:
        return counts

    async def open_approvals() -> MemoryApprovals:
        return approvals

    class Audit:
        append_rendered_inputs = inputs.append

    answer_policies(hub.exchange, open_counts, open_approvals, cast(SqliteAudit, Audit()))
    two = Count("two", 2, 3600.0)
    led = LedCounts(hub.leader)
    assert await led.take([two]) is None
    assert await counts.take([two]) is None, "a call that the leader answers"
    refusal = await led.take([Count("many", 9, 60.0), two])
    assert refusal is not None
    assert refusal.count == two
    assert 3500 < refusal.wait_s <= 3600
    assert (await led.find_refusal([two])) is not None
    await led.give_back([two])
    assert await led.find_refusal([two]) is None
    assert await counts.take([two]) is None

    store = LedApprovals(hub.leader)
    request = ApprovalRequest(caller="token:a", agent="bank", version="1", skill="pay", arguments={"sum": 1})
    asked = await store.ask(request, expires_s=60.0)
    assert asked.request == request
    assert await store.ask(request, expires_s=60.0) == asked == await store.find(asked.id)
    assert await store.find("unknown") is None
    assert (await approvals.answer(asked.id, "yes", "owner")).state == "approved"
    uses = [await store.use(asked.id, asked.digest, "key", once=True) for _ in range(2)]
    assert uses == [True, False]
    await store.keep_outcome(asked.id, "key", {"value": 1})
    used = await store.find_used(asked.digest, "key")
    assert used is not None
    assert used.outcome == {"value": 1}
    with pytest.raises(UnknownApprovalError):
        await store.answer("unknown", "no", "owner")
    hub.leader.append_inputs({"sum": _LARGE})
    await _until(lambda: inputs == [b'{"sum": %d}' % _LARGE])


async def test_no_call_is_counted_while_no_process_leads(tmp_path: Path) -> None:
    forwarder = Forwarder(HubPlace(1, 2, tmp_path, "hub-1", 0, 0, 0))
    with pytest.raises(BusyError, match="leading process"):
        await LedCounts(Leader(lambda: forwarder.session(0))).take([Count("two", 2, 3600.0)])
    await forwarder.aclose()
