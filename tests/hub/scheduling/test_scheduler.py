"""Schedules fire once, with the rights of their owner, whatever nodes, clocks and definitions do."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from retinue.core.call import TraceContext, TraceExtension
from retinue.core.errors import StateError
from retinue.hub.workflows import ChainChoice
from retinue.mesh.directory.rollouts import CHOSEN
from retinue.web.security import LOCAL_TOKEN
from retinue.workflows.library import Library
from retinue.workflows.schedules import LATE_S, MAX_WAITING, LastFiring, Progress
from tests.hub.scheduling.bench import BEGIN, TOKEN, WAITS, WORK, ScheduleBench, TextShelf

HOUR = 3_600.0


async def test_a_schedule_starts_a_run_at_its_time_and_no_other(bench: ScheduleBench) -> None:
    node = bench.node()
    row = await node.add(cron="0 3 * * *", timezone="Europe/Berlin", input={"x": 1})
    assert row["next"] == "2026-12-01T03:00:00+01:00"
    assert await node.look() == 5.0
    assert await bench.list_runs() == []
    bench.now = BEGIN + 2 * HOUR - 2
    assert await node.look() == 2.0
    bench.now = BEGIN + 2 * HOUR
    for _ in range(3):
        await node.look()
    assert await bench.list_runs() == ["nightly:20261201T020000Z"]
    record = await bench.runs.finish("nightly:20261201T020000Z")
    assert (record.status, record.request.input) == ("done", {"x": 1})
    shown = await node.show()
    assert shown["status"] == "active"
    assert shown["next"] == "2026-12-02T03:00:00+01:00"
    assert shown["last"] == {
        "scheduled_at": "2026-12-01T03:00:00+01:00",
        "status": "done",
        "run": "nightly:20261201T020000Z",
    }


async def test_a_run_acts_with_the_rights_of_who_added_its_schedule_within_a_budget(
    bench: ScheduleBench,
) -> None:
    node = bench.node()
    await node.add(TOKEN, every="1h")
    bench.now += HOUR
    await node.look()
    (run,) = await bench.list_runs()
    assert run == "nightly:20261201T010000Z~mesh"
    origin = (await bench.runs.finish(run)).request.origin
    assert (origin.caller, origin.scopes, origin.calls_left) == ("token:ci", TOKEN.scopes, 99)


async def test_many_nodes_start_one_run(bench: ScheduleBench) -> None:
    nodes = [bench.node(home=home) for home in ("one", "one", "two", "three")]
    await nodes[0].add(every="1h")
    for _ in range(5):
        bench.now += HOUR
        await asyncio.gather(*(node.look() for node in nodes for _ in range(3)))
        await bench.settle()
    assert len(await bench.list_runs()) == 5


class KilledError(BaseException):
    """The node dies here."""


@pytest.mark.parametrize("moment", ["before the time is stored", "before the run", "after the run"])
async def test_a_node_that_dies_around_a_time_leaves_one_run(
    bench: ScheduleBench, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    dying, survivor = bench.node(), bench.node(home="two")
    await dying.add(every="1h")
    bench.now += HOUR

    async def die(*_: Any, **__: Any) -> Any:
        raise KilledError

    with monkeypatch.context() as patched:
        if moment == "before the time is stored":
            patched.setattr(dying.table, "change", die)
        elif moment == "before the run":
            patched.setattr(dying.starter, "start", die)
        else:
            patched.setattr("retinue.workflows.schedules.Progress.fired", lambda *_: _raise())
        with pytest.raises(KilledError):
            await dying.look()
    bench.now += 30
    await survivor.look()
    await bench.node().look()
    await bench.settle()
    assert await bench.list_runs() == ["nightly:20261201T010000Z"]
    assert (await survivor.show())["last"]["status"] == "done"


def _raise() -> Any:
    raise KilledError


async def test_a_clock_that_jumps_fires_nothing_twice(bench: ScheduleBench) -> None:
    node = bench.node()
    await node.add(every="1h", missed="all")
    for now in (1.0, 0.2, 1.5, 3.1, 0.0, 2.5, 3.9, 4.0, 1.0):
        bench.now = BEGIN + now * HOUR
        await node.look()
        await bench.settle()
    runs = await bench.list_runs()
    # times 2 and 3 came together: the second waits for no run, because the first had not ended
    assert len(runs) == len(set(runs))
    assert {run[-7:-1] for run in runs} <= {"010000", "020000", "030000", "040000"}
    assert {"nightly:20261201T010000Z", "nightly:20261201T040000Z"} <= set(runs)


@pytest.mark.parametrize(
    ("missed", "hours"),
    [("skip", []), ("once", [5]), ("all", [1, 2, 3, 4, 5])],
)
async def test_times_at_which_no_node_ran(bench: ScheduleBench, missed: str, hours: list[int]) -> None:
    node = bench.node()
    await node.add(every="1h", missed=missed, overlap="queue")
    bench.now = BEGIN + 5 * HOUR + LATE_S + 1
    for _ in range(6):
        await node.look()
        await bench.settle()
    assert await bench.list_runs() == [f"nightly:20261201T0{hour}0000Z" for hour in hours]
    bench.now = BEGIN + 6 * HOUR + LATE_S - 1
    await node.look()
    assert len(await bench.list_runs()) == len(hours) + 1, "a time that was seen late is kept"


async def test_after_a_long_time_at_most_the_newest_missed_times_are_made_up(bench: ScheduleBench) -> None:
    node = bench.node(WAITS)
    await node.add(every="1s", missed="all", overlap="queue")
    bench.now += 365 * 24 * HOUR
    await node.look()
    stored = await node.table.find("nightly")
    assert stored is not None
    assert len(stored.progress.waiting) == MAX_WAITING - 1
    assert stored.progress.waiting[-1] == stored.progress.seen_until == bench.now


async def test_a_time_during_a_run_is_skipped(bench: ScheduleBench) -> None:
    node = bench.node(WAITS)
    await node.add(every="1h")
    bench.now += HOUR
    await node.look()
    bench.now += HOUR
    await node.look()
    assert await bench.list_runs() == ["nightly:20261201T010000Z"]
    last = (await node.show())["last"]
    assert (last["status"], last["reason"]) == ("skipped", "the run before was still running")
    await bench.runs.signal("nightly:20261201T010000Z", "go", 1)
    await bench.settle()
    bench.now += HOUR
    await node.look()
    assert (await bench.list_runs())[1:] == ["nightly:20261201T030000Z"]


async def test_times_during_a_run_wait_in_a_queue(bench: ScheduleBench) -> None:
    node = bench.node(WAITS)
    await node.add(every="1h", overlap="queue")
    for _ in range(3):
        bench.now += HOUR
        await node.look()
    assert (await node.show())["waiting"] == 2
    assert await node.look() == 1.0
    for hour in (1, 2, 3):
        assert len(await bench.list_runs()) == hour
        run = f"nightly:20261201T0{hour}0000Z"
        await bench.runs.signal(run, "go", 1)
        await bench.runs.finish(run)
        await node.look()
    assert "waiting" not in await node.show()


async def test_a_run_is_cancelled_by_the_next_one(bench: ScheduleBench) -> None:
    node = bench.node(WAITS)
    await node.add(every="1h", overlap="cancel")
    for _ in range(2):
        bench.now += HOUR
        await node.look()
        await node.look()
    statuses = [(await bench.runs.get(run)).status for run in await bench.list_runs()]
    assert statuses == ["cancelled", "running"]


@pytest.mark.parametrize("change", ["changed", "gone"])
async def test_a_schedule_whose_definition_changed_or_went_is_broken_and_fires_nothing(
    bench: ScheduleBench, change: str
) -> None:
    node = bench.node()
    await node.add(every="1h")
    if change == "changed":
        node.texts["nightly"] = WORK.replace("n: 1", "n: 2")
    else:
        node.texts.clear()
    shown = await node.show()
    assert shown["status"] == "broken"
    assert ("was changed since" if change == "changed" else "Unknown workflow") in shown["reason"]
    bench.now += HOUR
    await node.look()
    assert await bench.list_runs() == []
    last = (await node.show())["last"]
    assert last["status"] == "failed"
    node.texts["nightly"] = WORK
    assert (await node.show())["status"] == "active"
    bench.now += HOUR
    await node.look()
    assert await bench.list_runs() == ["nightly:20261201T020000Z"]


async def test_a_node_without_the_workflow_leaves_the_time_to_others(bench: ScheduleBench) -> None:
    home, other = bench.node(), bench.node(home="two")
    other.texts.clear()
    await home.add(every="1h")
    bench.now += HOUR
    await other.look()
    stored = await home.table.find("nightly")
    assert stored is not None
    assert (stored.progress.waiting, stored.progress.broken) == ((), "")
    await home.look()
    assert len(await bench.list_runs()) == 1


@pytest.mark.parametrize("reason", ["the token token:ci was revoked", "the token token:ci has expired"])
async def test_a_schedule_whose_token_ended_is_paused_and_says_so(bench: ScheduleBench, reason: str) -> None:
    node = bench.node()
    await node.add(TOKEN, every="1h")
    bench.ended["token:ci"] = reason
    bench.now += HOUR
    await node.look()
    shown = await node.show()
    assert (shown["status"], shown["reason"]) == ("paused", reason)
    del bench.ended["token:ci"]
    bench.now += HOUR
    await node.look()
    assert await bench.list_runs() == []


async def test_the_token_of_an_owner_is_looked_up_where_it_was_issued_only(bench: ScheduleBench) -> None:
    home, other = bench.node(), bench.node(home="two")
    await home.add(TOKEN, every="1h")
    bench.now += HOUR
    bench.ended["token:ci"] = "the token token:ci was revoked"  # as it seems where it is unknown
    await other.look()
    bench.ended.clear()
    assert (await home.show())["status"] == "active"
    await home.look()
    assert len(await bench.list_runs()) == 1


async def test_a_time_waits_while_the_database_of_the_runs_is_away(
    bench: ScheduleBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = bench.node()
    await node.add(every="1h")
    bench.now += HOUR

    async def refuse(*_: Any, **__: Any) -> Any:
        raise StateError("the database of the runs does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(bench.runs, "start", refuse)
        await node.look()
    assert (await node.show())["waiting"] == 1
    await node.look()
    assert await bench.list_runs() == ["nightly:20261201T010000Z"]


async def test_a_run_that_cannot_start_is_told_and_the_next_time_tried(bench: ScheduleBench) -> None:
    node = bench.node()
    await node.add(every="1h")
    await node.starter.start(
        await node.starter.load(WORK_JSON), (await node.starter.load(WORK_JSON)).definition, 1,
        LOCAL_TOKEN, node.firing.new_trace(), run="nightly:20261201T010000Z",
    )  # fmt: skip
    bench.now += HOUR
    await node.look()
    last = (await node.show())["last"]
    assert last["status"] == "failed"
    assert "exists with another workflow or input" in last["reason"]
    bench.now += HOUR
    await node.look()
    assert "nightly:20261201T020000Z" in await bench.list_runs()


WORK_JSON = {"name": "other", "steps": [{"id": "a", "skill": "work", "with": {}}]}


async def test_the_scheduler_waits_for_the_next_time_and_notices_a_new_schedule(bench: ScheduleBench) -> None:
    node = bench.node()
    task = asyncio.create_task(node.scheduler.run())
    try:
        await asyncio.sleep(0.05)
        await node.add(every="1h")
        bench.now += HOUR
        node.scheduler.wake()
        async with asyncio.timeout(30):
            while not await bench.list_runs():
                await asyncio.sleep(0.01)
    finally:
        task.cancel()


def test_the_progress_can_be_stored_with_all_that_it_has() -> None:
    progress = Progress(1.0, (2.0,), "r", "p", "b", LastFiring(1.0, 2.0, "skipped", "r", "why"))
    assert Progress.from_json(progress.to_json()) == progress
    assert Progress.from_json(replace(progress, last=None).to_json()).last is None


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_run_takes_the_digest_that_its_chain_chooses_if_its_owner_has_seen_that_workflow(
    bench: ScheduleBench, is_known: bool
) -> None:
    node = bench.node()
    await node.add(every="1h")
    text = WORK if is_known else WORK.replace("n: 1", "n: 2")
    library = Library([TextShelf({"nightly": text})])

    def begin(trace: TraceContext) -> TraceContext:
        return trace.with_extension(TraceExtension(None, {CHOSEN: {"words": "new"}}))

    def library_of(trace: TraceContext) -> Library:
        return node.starter.library if trace.extension is None else library

    node.starter.chains = ChainChoice(begin, lambda trace: trace, library_of, lambda trace: [trace])
    bench.now += HOUR
    await node.look()
    (run,) = await bench.list_runs()
    trace = (await bench.runs.finish(run)).request.origin.trace
    assert trace is not None
    assert (trace.extension is not None) is is_known


async def test_a_schedule_fires_once_with_the_workflow_that_its_owner_has_seen_while_lists_show_another(
    bench: ScheduleBench,
) -> None:
    node = bench.node()
    await node.add(every="1h")
    changed = Library([TextShelf({"nightly": WORK.replace("n: 1", "n: 2")})])

    def choose(mark: str, trace: TraceContext) -> TraceContext:
        return trace.with_extension(TraceExtension(None, {CHOSEN: {"words": mark}}))

    def library_of(trace: TraceContext) -> Library:
        chosen = {} if trace.extension is None else trace.extension.others[CHOSEN]
        return node.starter.library if chosen == {"words": "old"} else changed

    node.starter.chains = ChainChoice(
        lambda trace: choose("new", trace),
        lambda trace: trace,
        library_of,
        lambda trace: [choose("new", trace), choose("old", trace)],
    )
    bench.now += HOUR
    await node.look()
    await node.look()
    (run,) = await bench.list_runs()
    trace = (await bench.runs.finish(run)).request.origin.trace
    assert trace is not None
    assert trace.extension is not None
    assert trace.extension.others[CHOSEN] == {"words": "old"}
    assert (await node.show())["last"]["status"] == "done"


async def test_a_schedule_that_is_added_again_loses_no_time_and_repeats_none(bench: ScheduleBench) -> None:
    node = bench.node()
    await node.add(every="1h")
    bench.now += HOUR
    await node.add(every="1h")  # before the scheduler has looked
    await node.look()
    assert len(await bench.list_runs()) == 1
    await node.add(every="1h")
    await node.look()
    assert len(await bench.list_runs()) == 1
    bench.now += HOUR
    await node.look()
    assert len(await bench.list_runs()) == 2
