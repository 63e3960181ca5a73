"""What only the durable runs do; run in the child process of ``test_durable_own_suite``."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
import sqlalchemy as sa
from dbos import DBOS, _dbos
from dbos._sys_db import SystemDatabase
from structlog.testing import capture_logs

from retinue.core.call import TraceContext
from retinue.core.errors import (
    BusyError,
    ExecutionFailedError,
    RunConflictError,
    StateError,
    StorageFullError,
    UnknownRunError,
)
from retinue.testing.memory_caller import MemoryCaller
from retinue.workflows.definitions.loading import load_definition
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.events import EventTable, NewEvent
from retinue.workflows.durable.executions import Executions
from retinue.workflows.durable.executions_here import Execution
from retinue.workflows.durable.nodes import Lease
from retinue.workflows.durable.retention import list_half_undone
from retinue.workflows.durable.runs import DurableOptions, DurableRuns
from retinue.workflows.durable.tables.hosted import HostedTable
from retinue.workflows.interpreter.step_loop import Interpreter
from retinue.workflows.orchestrator import Orchestrator
from retinue.workflows.runs.hosting import HostedWorkflow, RunCode
from retinue.workflows.runs.ports import Body, RunContext
from retinue.workflows.runs.records import Extension, Origin, RunRequest
from tests.support.thinking import think
from tests.time_bounds import Stopwatch
from tests.workflows.runs.effects import counting
from tests.workflows.runs.test_thinking import ThinkingEngine

ASKED = RunRequest(name="test", definition={}, input=None)


async def body(context: RunContext, request: RunRequest) -> Any:
    if request.input == "child":
        return "child"
    if request.input == "waits":
        return (await context.receive("approval", "approved", 30)).value
    child = await context.child("c", RunRequest("child", {}, "child"))
    return [outcome.value for outcome in await context.wait("w", [child])]


def open_at(
    folder: Path, *, body: Body = body, hosted: Sequence[HostedWorkflow] = (), **options: Any
) -> DurableRuns:
    return DurableRuns(
        body,
        url=f"sqlite:///{folder}/runs.db",
        nodes=folder / "nodes",
        options=DurableOptions(**{"poll_s": 0.05} | options),
        hosted=hosted,
    )


@pytest.fixture(autouse=True)
def no_engine_left() -> Iterator[None]:
    """A test that has failed before it closed its runs leaves no engine to the tests after it."""
    yield
    if _dbos._dbos_global_instance is not None:
        DBOS.destroy()


async def test_the_oldest_ended_runs_are_deleted_with_all_below_them(tmp_path: Path) -> None:
    runs = open_at(tmp_path, keep=2, prune_every_s=3600)
    for name in ("one", "two", "three"):
        await runs.start(ASKED, run_id=name)
        await runs.finish(name)
    await runs.start(RunRequest("test", {}, "waits"), run_id="open")
    # All ended in one second, as far as the rows of SQLite tell: any one of them may be the oldest.
    assert await runs.prune() == 1
    left = {record.id for record in await runs.list_all(children=True)}
    assert len(left) == 5
    assert "open" in left
    (gone,) = {"one", "two", "three"} - left
    for name in (gone, f"{gone}/c"):
        with pytest.raises(UnknownRunError):
            await runs.list_events(name)
    await runs.aclose()


SAGA = """
name: saga
steps:
- {id: a, skill: add, compensate: {skill: free, with: {}, retry: {attempts: 1}}}
- {id: b, skill: fail}
"""


async def test_a_half_undone_run_is_kept_and_counted_until_it_is_resolved(tmp_path: Path) -> None:
    """Beside runs that failed without anything to undo, and others that quote the word."""
    caller, freed = MemoryCaller(), list[Any]()
    refusals: list[Exception] = [BusyError("full", 0)] * 3

    async def free(given: Any) -> None:
        if refusals:
            raise refusals.pop()
        freed.append(given)

    async def fail(given: Any) -> Any:
        raise ExecutionFailedError(f'"undo": "incomplete" {given}')

    async def add(given: Any) -> Any:
        return {"n": 1}

    caller.offer("add", add)
    caller.offer("free", free)
    caller.offer("fail", fail)
    runs = open_at(tmp_path, body=Interpreter(caller).run, keep=1, prune_every_s=3600)
    orchestrator = Orchestrator(runs)
    alone = load_definition("name: alone\nsteps: [{id: b, skill: fail}]")
    for name in ("resumed", "cancelled"):
        assert (await orchestrator.run(load_definition(SAGA), {}, run_id=name)).is_half_undone
        await orchestrator.run(alone, {}, run_id=f"after-{name}")
    assert await runs.prune() == 1
    assert {record.id for record in await runs.list_all()} >= {"resumed", "cancelled"}
    assert (await runs.read_figures()).half_undone == 2

    assert (await runs.cancel("cancelled")).status == "cancelled"
    assert await _count_half_undone(tmp_path) == 1
    await runs.resume("resumed")
    assert (await runs.finish("resumed")).is_half_undone
    await runs.resume("resumed")
    assert not (await runs.finish("resumed")).is_half_undone
    assert await _count_half_undone(tmp_path) == 0
    # what was given up may be taken up again
    await runs.resume("cancelled")
    assert (await runs.finish("cancelled")).status == "failed"
    assert len(freed) == 2
    await orchestrator.run(alone, {}, run_id="newest")
    await runs.prune()
    assert len(await runs.list_all()) == 1
    await runs.aclose()


async def test_the_id_of_a_deleted_run_does_not_run_again(tmp_path: Path) -> None:
    other = RunRequest("test", {}, "other")
    runs = open_at(tmp_path, keep_days=1e-9, prune_every_s=3600)
    await runs.start(ASKED, run_id="order-7")
    await runs.finish("order-7")
    await asyncio.sleep(0.001)
    assert await runs.prune() == 1
    with pytest.raises(RunConflictError, match="order-7 has ended and was deleted"):
        await runs.start(ASKED, run_id="order-7")
    with pytest.raises(RunConflictError, match="exists with another workflow or input"):
        await runs.start(other, run_id="order-7")
    kept = await runs.start(RunRequest("test", {}, "waits"))
    with pytest.raises(UnknownRunError):
        await runs.get("order-7")
    await runs.signal(kept.id, "approved", {})
    await runs.finish(kept.id)
    await runs.aclose()

    forgetful = open_at(tmp_path, keep_ids_days=1e-9, prune_every_s=3600)
    await forgetful.launch()
    await forgetful.prune()
    assert (await forgetful.start(other, run_id="order-7")).id == "order-7"
    await forgetful.finish("order-7")
    await forgetful.aclose()


A, B, C, D = (f"sha256:{letter * 64}" for letter in "abcd")
UNUSED = f"sha256:{'e' * 64}"


async def linking_body(context: RunContext, request: RunRequest) -> Any:
    """Has a link in its request, in the outcome of a step, in the request of a child, and in its output."""
    if request.name == "child":
        return "done"

    async def save() -> Any:
        return {"files": [{"artifact": B, "size": 1}], "image": f"image@{UNUSED}"}

    await context.step("save", save, timeout_s=30)
    child = await context.child("c", RunRequest("child", {}, {"file": f"artifact:{C}"}))
    await context.wait("w", [child])
    await context.receive("approval", "approved", 30)
    return f"see http://hub/artifacts/{D}"


async def test_a_run_holds_the_artifacts_whose_links_it_stores_until_it_is_deleted(tmp_path: Path) -> None:
    deleted: list[tuple[Sequence[str], Sequence[str]]] = []

    async def note(ids: Sequence[str], digests: Sequence[str]) -> None:
        deleted.append((ids, digests))

    runs = DurableRuns(
        linking_body,
        url=f"sqlite:///{tmp_path}/runs.db",
        nodes=tmp_path / "nodes",
        options=DurableOptions(poll_s=0.05, keep=1, prune_every_s=3600),
        on_deleted=note,
    )
    origin = Origin(trace=TraceContext("trace-1"))
    await runs.start(RunRequest("test", {}, {"file": {"artifact": A}}, origin=origin), run_id="one")
    following = runs.follow("one")
    async for event in following:
        if event.kind == "step_started" and event.step == "approval":
            break
    # the outcome of a step is recorded when its link is held
    assert await runs.find_held_artifacts([A, B, C, D, UNUSED]) == {A, B, C}
    await runs.signal("one", "approved", True)
    await runs.finish("one")
    assert await runs.find_held_artifacts([A, B, C, D, UNUSED]) == {A, B, C, D}
    await runs.fork("one", from_step="approval", new_run_id="two")
    await runs.signal("two", "approved", True)
    await runs.finish("two")
    await asyncio.sleep(0.01)
    await runs.prune()
    ((ids, digests),) = deleted
    assert list(ids) in (["one", "trace-1"], ["two", "trace-1"])
    assert digests == sorted([A, B, C, D])
    # the other run, which has the same links, goes on to hold them
    assert await runs.find_held_artifacts([A, B, C, D]) == {A, B, C, D}
    other = "two" if "one" in ids else "one"
    assert await runs.held_artifacts.list_of(other) == sorted([A, B, C, D])
    await runs.aclose()


async def test_runs_that_are_deleted_before_their_age_are_told_once(tmp_path: Path) -> None:
    runs = open_at(tmp_path, keep=1, prune_every_s=3600)
    with capture_logs() as lines:
        for name in ("one", "two", "three"):
            await runs.start(ASKED, run_id=name)
            await runs.finish(name)
            await runs.prune()
    told = [line for line in lines if line["event"] == "runs deleted before runs.keep_days"]
    assert [(line["runs"], line["keep"]) for line in told] == [(1, 1)]
    await runs.aclose()


async def _count_half_undone(folder: Path) -> int:
    """As another process counts them."""
    database = RunDatabase(f"sqlite:///{folder}/runs.db")
    try:
        return len(await database.read(list_half_undone, database.client))
    finally:
        database.close()


async def test_a_process_that_runs_nothing_sees_follows_and_answers_runs(tmp_path: Path) -> None:
    node, other = open_at(tmp_path), open_at(tmp_path)
    await node.start(RunRequest("test", {}, "waits"), run_id="r")
    assert [record.id for record in await other.list_all(status="running")] == ["r"]
    following = asyncio.create_task(_collect(other, "r"))
    await other.signal("r", "approved", {"by": "Ada"})
    assert (await other.finish("r")).get() == {"by": "Ada"}
    assert await following == ["run_started", "step_started", "step_finished", "run_finished"]
    assert [step.step for step in await other.list_steps("r")] == ["approval"]
    assert not (tmp_path / "nodes" / "slot-2.lock").exists()
    await other.aclose()
    await node.aclose()


async def test_a_run_let_go_of_is_taken_up_by_the_next_process_and_waits_no_longer_than_asked(
    tmp_path: Path,
) -> None:
    first = open_at(tmp_path)
    asked_at = time.time()
    await first.start(RunRequest("test", {}, "waits"), run_id="r")
    await _await_step(first, "approval")
    await first.aclose()
    second = open_at(tmp_path)
    assert (await second.get("r")).status == "running"
    await second.resume("r")
    await second.signal("r", "approved", 1)
    assert (await second.finish("r")).get() == 1
    assert (await second.get("r")).started_at == pytest.approx(asked_at, abs=5)
    kinds = [event.kind for event in await second.list_events("r")]
    assert kinds.count("run_resumed") == 1
    assert kinds.count("run_finished") == 1
    await second.aclose()


async def test_a_run_that_was_let_go_and_taken_up_ends_once(tmp_path: Path) -> None:
    """Two executions of one process see the same end, and only the one that made it emits it."""

    async def asks(context: RunContext, request: RunRequest) -> Any:
        await context.count_undo_requests()
        return (await context.step("a", gives, timeout_s=5)).value

    async def gives() -> Any:
        return 1

    runs = open_at(tmp_path, body=asks)
    executions = await runs.launch()
    count = executions.count_undo_requests
    failures = [StateError("the database does not answer", remedy="wait")]

    async def count_later(run_id: str) -> int:
        if failures:
            raise failures.pop()
        return await count(run_id)

    executions.count_undo_requests = count_later  # type: ignore[method-assign]
    await runs.start(ASKED, run_id="r")
    async with asyncio.timeout(60):
        while not (await runs.get("r")).finished_at:
            await asyncio.sleep(0.02)
        while executions._settling:
            await asyncio.sleep(0.02)
    kinds = [event.kind for event in await runs.list_events("r")]
    assert kinds == ["run_started", "run_resumed", "step_started", "step_finished", "run_finished"]
    await runs.aclose()


async def test_a_run_whose_code_no_node_has_waits_and_goes_to_the_first_node_that_announces_it(
    tmp_path: Path,
) -> None:
    def make_code(digest: str) -> HostedWorkflow:
        code = {"file": "flows.py", "function": "flow", "digest": digest}
        return HostedWorkflow(RunCode("flow", **code), {"name": "flow", "code": code})

    needed = make_code("sha256:1")

    async def waits(context: RunContext, request: RunRequest) -> Any:
        await context.pass_on(needed.code)

    runs = open_at(tmp_path, body=waits, lease_s=3.0)
    await runs.start(RunRequest("flow", needed.definition, None), run_id="r")
    database = RunDatabase(f"sqlite:///{tmp_path}/runs.db")

    async def read_queue() -> str | None:
        query = sa.text("SELECT queue_name FROM workflow_status WHERE workflow_uuid = 'r'")
        queue: str | None = await database.read(lambda connection: connection.execute(query).scalar())
        return queue

    def join(executor: str, hosted: HostedWorkflow) -> Lease:
        table = HostedTable(database, [hosted])
        return Lease(database, executor, lease_s=30, count_running=lambda: 0, hosted=table)

    old = join("old-1", make_code("sha256:0"))
    await old.begin()
    for _ in range(4):  # looks at the leases
        await (await runs.launch()).lease.await_look()
    assert await read_queue() is None
    assert [one.kind for one in await runs.list_events("r")] == ["run_started"]
    assert [one.code.digest for one in await runs.list_hosted()] == ["sha256:0"]
    able = join("able-1", needed)
    await able.begin()
    async with asyncio.timeout(60):
        while await read_queue() != "node:able-1":
            await asyncio.sleep(0.02)
    assert [one.code.digest for one in await runs.list_hosted()] == ["sha256:0", "sha256:1"]
    # a new run goes there at once
    await runs.start(RunRequest("flow", needed.definition, None), run_id="next")
    assert await runs.list_events("next") == ()
    await able.end()
    assert [one.code.digest for one in await runs.list_hosted()] == ["sha256:0"]
    await old.end()
    await runs.aclose()
    database.close()


async def test_an_announcement_is_renewed_with_the_lease_and_goes_with_it(tmp_path: Path) -> None:
    code = {"file": "flows.py", "function": "flow", "digest": "sha256:1"}
    hosted = HostedWorkflow(RunCode("flow", **code), {"name": "flow", "code": code}, frozenset({"sha256:0"}))
    runs = open_at(tmp_path, lease_s=60.0, hosted=[hosted])
    lease = (await runs.launch()).lease
    assert await runs.list_hosted() == (hosted,)
    # as another node does that has seen the lease end
    database = RunDatabase(f"sqlite:///{tmp_path}/runs.db")
    await database.write(lambda connection: HostedTable(database).forget(connection, lease.executor))
    assert await runs.list_hosted() == ()
    for _ in range(2):  # the first renewal sees that it is not announced
        await lease.renew()
    assert await runs.list_hosted() == (hosted,)
    await runs.leave()
    assert await runs.list_hosted() == ()
    await runs.aclose()
    database.close()


async def test_a_run_asks_for_no_record_of_a_call_alone_and_one_that_is_taken_up_for_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def steps(context: RunContext, request: RunRequest) -> Any:
        async def gives() -> Any:
            return 1

        total = 0
        for number in range(30):
            total += (await context.step(f"s-{number}", gives, timeout_s=5)).value
        child = await context.child("c", RunRequest("child", {}, "child"))
        await context.wait("w", [child])
        return [total, (await context.receive("approval", "approved", 30)).value]

    async def either(context: RunContext, request: RunRequest) -> Any:
        return "child" if request.input == "child" else await steps(context, request)

    asked: list[int] = []
    check = SystemDatabase.check_operation_execution

    def count(self: Any, workflow_id: str, function_id: int, *more: Any, **options: Any) -> Any:
        asked.append(function_id)
        return check(self, workflow_id, function_id, *more, **options)

    monkeypatch.setattr(SystemDatabase, "check_operation_execution", count)
    first = open_at(tmp_path, body=either)
    await first.start(ASKED, run_id="r")
    await _await_step(first, "approval")
    await first.aclose()
    second = open_at(tmp_path, body=either)
    await second.launch()
    await second.signal("r", "approved", 1)
    assert (await second.finish("r")).get() == [30, 1]
    assert asked == [31]  # the start of the child, which is the engine's
    kinds = [event.kind for event in await second.list_events("r")]
    assert kinds.count("step_finished") == 31
    await second.aclose()


async def test_a_body_that_raises_generator_exit_ends_its_run(tmp_path: Path) -> None:
    async def exits(context: RunContext, request: RunRequest) -> Any:
        raise GeneratorExit

    runs = open_at(tmp_path, body=exits)
    await runs.start(ASKED, run_id="r")
    async with asyncio.timeout(60):
        ended = await runs.finish("r")
    assert ended.fault is not None
    assert ended.fault.type == "internal_error"
    await runs.aclose()


async def test_an_execution_that_lost_its_run_without_knowing_emits_no_end_of_it(tmp_path: Path) -> None:
    """Its lease ran out, another node took the run over and ended it, and the body came to its end here."""
    reached, may_end = asyncio.Event(), asyncio.Event()

    async def ends_late(context: RunContext, request: RunRequest) -> Any:
        reached.set()
        await may_end.wait()
        return 1

    runs = open_at(tmp_path, body=ends_late)
    executions = await runs.launch()
    await runs.start(ASKED, run_id="r")
    await reached.wait()
    assert [event.kind for event in await runs.list_events("r")] == ["run_started"]
    database = RunDatabase(f"sqlite:///{tmp_path}/runs.db")

    async def change(statement: str, **values: Any) -> None:
        await database.write(lambda connection: connection.execute(sa.text(statement), values))

    take = "UPDATE workflow_status SET executor_id = 'other-1', owner_xid = 'other' WHERE workflow_uuid = 'r'"
    await change(take)
    may_end.set()
    output = orjson.dumps({"value": 2, "at": time.time(), "calls": None}).decode()
    await change("INSERT INTO workflow_output (workflow_uuid, output) VALUES ('r', :output)", output=output)
    await change("UPDATE workflow_status SET status = 'SUCCESS', owner_xid = NULL WHERE workflow_uuid = 'r'")
    table = EventTable(database)
    table.add(NewEvent("r", "r", "run_resumed", "", {}))
    table.add(NewEvent("r", "r", "run_finished", "", {"status": "done"}, once="end 1"))
    await table.flush()
    async with asyncio.timeout(60):
        while executions._settling:
            await asyncio.sleep(0.02)
    assert (await runs.finish("r")).get() == 2
    kinds = [event.kind for event in await runs.list_events("r")]
    assert kinds == ["run_started", "run_resumed", "run_finished"]
    await runs.aclose()
    database.close()


@pytest.mark.parametrize("loss", ["cancelled", "taken over"])
async def test_a_step_during_which_the_run_is_lost_is_not_recorded_and_no_further_one_begins(
    tmp_path: Path, loss: str
) -> None:
    """Before this process looks for cancelled runs, and with a lease that lasts."""
    begun: list[int] = []
    database = RunDatabase(f"sqlite:///{tmp_path}/runs.db")
    take = sa.text("UPDATE workflow_status SET executor_id = 'other-1', owner_xid = 'other'")

    async def lose(number: int) -> int:
        begun.append(number)
        if number == 2 and loss == "cancelled":
            await database.ask(database.client.cancel, ["r"])
        elif number == 2:
            await database.write(lambda connection: connection.execute(take))
        return number

    async def steps(context: RunContext, request: RunRequest) -> Any:
        for number in (1, 2, 3):
            await context.step(f"s-{number}", lambda n=number: lose(n), timeout_s=5)  # type: ignore[misc]

    runs = open_at(tmp_path, body=steps)
    executions = await runs.launch()
    await runs.start(ASKED, run_id="r")
    async with asyncio.timeout(60):
        while len(begun) < 2 or executions._settling or executions.here.find("r"):
            await asyncio.sleep(0.01)
    assert begun == [1, 2]
    assert [call.name for call in await database.ask(database.client.list_calls, "r", False)] == ["s-1"]
    await runs._events.flush()
    events, _ = await EventTable(database).list_all("r")
    ends = [event.facts["status"] for event in events if event.kind == "run_finished"]
    assert ends == (["cancelled"] if loss == "cancelled" else [])
    await runs.aclose()
    database.close()


async def test_a_run_that_is_reopened_at_once_has_the_event_of_the_end_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next execution begins before the last one has read the end that it recorded."""
    ends, may_settle = list[Execution](), asyncio.Event()
    settle = Executions._settle

    async def settle_late(executions: Executions, *args: Any) -> None:
        execution, _, task = args
        await asyncio.wait([task])
        ends.append(execution)
        await may_settle.wait()
        await settle(executions, *args)

    engine = ThinkingEngine()
    monkeypatch.setattr(Executions, "_settle", settle_late)
    runs = open_at(tmp_path, body=Interpreter(engine.caller).run)
    definition = load_definition(think(tools=["adder/*"], limits={"turns": 2}))
    await Orchestrator(runs).start(definition, {}, run_id="r")
    async with asyncio.timeout(60):
        while not ends:
            await asyncio.sleep(0.01)
        await runs.extend("r", Extension("research", {"turns": 20}))
        while len(ends) < 2:
            await asyncio.sleep(0.01)
    may_settle.set()
    assert (await runs.finish("r")).get() == "the end"
    kinds = [event.kind for event in await runs.list_events("r") if event.kind.startswith("run")]
    assert kinds == ["run_started", "run_finished", "run_resumed", "run_finished"]
    await runs.aclose()


async def test_a_process_launches_the_engine_once(tmp_path: Path) -> None:
    runs, other = open_at(tmp_path), open_at(tmp_path)
    await runs.launch()
    with pytest.raises(StateError, match="already"):
        await other.start(ASKED, run_id="r")
    # It has let go of the slot and the lease that it had taken on the way.
    await runs.start(ASKED, run_id="r")
    assert (await runs.finish("r")).get() == ["child"]
    await other.aclose()
    await runs.aclose()


async def test_a_process_works_on_so_many_steps_at_once_and_runs_that_agents_began_do_not_wait_for_them(
    tmp_path: Path,
) -> None:
    begun: asyncio.Queue[str] = asyncio.Queue()
    go = asyncio.Event()

    async def work(context: RunContext, request: RunRequest) -> Any:
        async def effect() -> Any:
            begun.put_nowait(context.run_id)
            await go.wait()
            return None

        # the time limit is the step's own: it does not run while the step waits for its place
        return (await context.step("s", effect, timeout_s=30)).fault

    runs = open_at(tmp_path, body=work, concurrency=2)
    for name in ("one", "two", "three"):
        await runs.start(ASKED, run_id=name)
    at_work = {await begun.get(), await begun.get()}
    begun_by_agent = RunRequest("test", {}, None, Origin(trace=TraceContext("t", depth=1)))
    await runs.start(begun_by_agent, run_id="deeper")
    assert await begun.get() == "deeper"
    assert begun.empty()
    go.set()
    for name in ("one", "two", "three", "deeper"):
        assert (await runs.finish(name)).get() is None
    assert await begun.get() not in at_work
    await runs.aclose()


async def test_what_a_run_used_is_known_wherever_it_was_executed(tmp_path: Path) -> None:
    """Half of it by a process that let it go, half by another; asked by one that executes nothing."""

    async def use(context: RunContext, request: RunRequest) -> Any:
        first = await context.step("a", do, timeout_s=5, count=counting(4))
        await context.receive("approval", "approved", 30)
        second = await context.step("b", do, timeout_s=5, count=counting(5))
        context.record_usage((first.calls or 0) + (second.calls or 0))

    async def do() -> None:
        done.append(None)

    done: list[None] = []
    first, second, other = (open_at(tmp_path, body=use) for _ in range(3))
    await first.start(ASKED, run_id="r")
    await _await_step(first, "approval")
    await first.aclose()
    await second.resume("r")
    await second.signal("r", "approved", 1)
    assert (await other.finish("r")).calls == 9
    assert len(done) == 2
    await second.aclose()
    assert (await other.get("r")).calls == 9
    await other.aclose()


async def _collect(runs: DurableRuns, run_id: str) -> list[str]:
    async with asyncio.timeout(60):
        return [event.kind async for event in runs.follow(run_id)]


async def _await_step(runs: DurableRuns, step: str) -> None:
    async with asyncio.timeout(60):
        async for event in runs.follow("r"):
            if event.step == step:
                return


async def test_what_a_run_has_stored_counts_after_another_process_took_it_up(tmp_path: Path) -> None:
    """Its own results, those of its child runs, and its input."""

    async def give() -> str:
        return "x" * 100_000

    async def body(context: RunContext, request: RunRequest) -> Any:
        if request.input == "child":
            return (await context.step("inner", give, timeout_s=5)).value
        await context.step("first", give, timeout_s=5)
        await context.wait("w", [await context.child("c", RunRequest("child", {}, "child"))])
        await context.receive("go", "go", 60)
        outcome = await context.step("second", give, timeout_s=5)
        return None if outcome.fault is None else outcome.fault.message

    # first, then inner, and the child's output as the outcome of the wait
    limit = 350_000
    node = open_at(tmp_path, body=body, run_bytes=limit)
    await node.start(RunRequest("test", {}, "x"), run_id="r")
    async for event in node.follow("r"):
        if (event.kind, event.step) == ("step_started", "go"):
            break
    await node.aclose()
    other = open_at(tmp_path, body=body, run_bytes=limit)
    await other.launch()
    await other.signal("r", "go", 1)
    said = (await other.finish("r")).value
    await other.aclose()
    assert "the result of step second, 100,0" in said
    assert "is over the limit of 350,000 bytes" in said


async def test_a_large_output_that_is_the_value_of_a_step_is_stored_once_and_read_everywhere(
    tmp_path: Path,
) -> None:
    """Alone, and under the keys of an object; in another process, and in a copy of the run."""

    async def give() -> dict[str, Any]:
        return {"text": "x" * 1_000_000, "n": 1}

    async def body(context: RunContext, request: RunRequest) -> Any:
        first = (await context.step("first", give, timeout_s=5)).value
        await context.step("last", give, timeout_s=5)
        return first if request.input == "whole" else {"about": "parts", "one": first, "few": [1]}

    node = open_at(tmp_path, body=body)
    given = await give()
    for name, output in (("whole", given), ("parts", {"about": "parts", "one": given, "few": [1]})):
        await node.start(RunRequest("test", {}, name), run_id=name)
        assert (await node.finish(name)).value == output
        other = open_at(tmp_path, body=body)
        shown = (await other.get(name)).value
        assert shown == output
        assert list(shown) == list(output)
        await other.aclose()
        await node.fork(name, from_step="last", new_run_id=f"{name}-again")
        assert (await node.finish(f"{name}-again")).value == output
    await node.aclose()
    with sa.create_engine(f"sqlite:///{tmp_path}/runs.db").connect() as connection:
        stored = connection.execute(sa.text("SELECT sum(length(output)) FROM workflow_output")).scalar_one()
    assert stored < 1_000


async def test_on_a_full_disk_a_start_and_a_signal_fail_soon_with_the_remedy_and_runs_go_on_later(
    tmp_path: Path,
) -> None:
    pages = 2**30

    def limit(connection: Any, record: Any, proxy: Any) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages}")

    sa.event.listen(sa.pool.Pool, "checkout", limit)
    runs = open_at(tmp_path)
    big = "x" * 200_000
    try:
        await runs.start(RunRequest("test", {}, "waits"), run_id="r")
        await _await_step(runs, "approval")
        pages = 1  # less than it has: it cannot grow
        stopwatch = Stopwatch()
        for ask in (
            runs.start(RunRequest("test", {}, big), run_id="new"),
            runs.signal("r", "approved", big),
        ):
            with pytest.raises(StorageFullError, match=r"no space left for .*runs.db") as caught:
                await ask
            assert caught.value.remedy == "free some space"
        stopwatch.check(15)
        pages = 2**30
        assert {record.id for record in await runs.list_all()} == {"r"}
        await runs.signal("r", "approved", "yes")
        async with asyncio.timeout(60):
            assert (await runs.finish("r")).get() == "yes"
    finally:
        sa.event.remove(sa.pool.Pool, "checkout", limit)
        await runs.aclose()


BRANCHES = {
    "name": "branches",
    "steps": [
        {"id": "each", "foreach": "${{ [1, 2] }}", "steps": [{"id": "one", "skill": "give"}]},
        {"id": "go", "wait_for": {"topic": "go"}},
    ],
    "output": {"both": "${{ steps.each.output }}"},
}


async def test_a_large_value_of_a_branch_is_stored_by_its_step_and_by_the_wait_and_read_everywhere(
    tmp_path: Path,
) -> None:
    """After a restart, in another process, and in a copy of the run whose original was deleted."""
    caller, given = MemoryCaller(), ["a" * 1_000_000, "b" * 1_000_000]
    values = iter(given)

    async def give(_: Any) -> str:
        return next(values)

    caller.offer("give", give)
    interpreter = Interpreter(caller).run
    node = open_at(tmp_path, body=interpreter)
    await Orchestrator(node).start(load_definition(BRANCHES), {}, run_id="r")
    await _await_step(node, "go")
    await node.aclose()

    node = open_at(tmp_path, body=interpreter, keep=1)
    await node.launch()
    await node.signal("r", "go", 1)
    output = {"both": sorted(given)}
    shown = (await node.finish("r")).value
    assert {"both": sorted(shown["both"])} == output
    assert _count_stored(tmp_path) < 4_100_000
    outcomes = orjson.dumps([step.outcome.value for step in await node.list_steps("r")]).decode()
    assert [outcomes.count(one) for one in given] == [1, 1]

    await node.fork("r", from_step="go", new_run_id="copy")
    await node.signal("copy", "go", 1)
    assert (await node.finish("copy")).value == shown
    await node.prune()
    await node.aclose()

    other = open_at(tmp_path, body=interpreter)
    assert [record.id for record in await other.list_all(children=True)] == ["copy"]
    assert (await other.get("copy")).value == shown
    await other.aclose()


async def test_a_reference_to_a_step_as_older_versions_stored_it_is_read(tmp_path: Path) -> None:
    async def give() -> str:
        return "x" * 100_000

    async def body(context: RunContext, request: RunRequest) -> Any:
        return {"n": 1, "text": (await context.step("first", give, timeout_s=5)).value}

    node = open_at(tmp_path, body=body)
    await node.start(ASKED, run_id="r")
    ended = (await node.finish("r")).value
    older = {"value": {"n": 1, "text": None}, "at": time.time(), "calls": 1, "steps": {"text": "first"}}
    with sa.create_engine(f"sqlite:///{tmp_path}/runs.db").begin() as connection:
        update = sa.text("UPDATE workflow_output SET output = :output")
        assert connection.execute(update, {"output": orjson.dumps(older).decode()}).rowcount == 1
    assert (await node.get("r")).value == ended == {"n": 1, "text": "x" * 100_000}
    await node.aclose()


def _count_stored(folder: Path) -> int:
    """The characters of all outputs of steps, waits and runs."""
    with sa.create_engine(f"sqlite:///{folder}/runs.db").connect() as connection:
        query = "SELECT coalesce(sum(length(output)), 0) FROM {}"
        tables = "operation_outputs", "workflow_output"
        return sum(int(connection.execute(sa.text(query.format(name))).scalar_one()) for name in tables)


class HeldLaunch:
    """Waits, as DBOS does while its database is away, until it may go on."""

    def __init__(self, launch: Callable[[], None]) -> None:
        self._launch = launch
        self.has_begun = threading.Event()
        self.may_go_on = threading.Event()
        self.is_destroyed = threading.Event()

    def __call__(self) -> None:
        self.has_begun.set()
        assert self.may_go_on.wait(60)
        self._launch()


@pytest.fixture
def held_launch(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldLaunch]:
    held = HeldLaunch(DBOS.launch)
    monkeypatch.setattr(DBOS, "launch", held)
    destroy = DBOS.destroy

    def end(**options: Any) -> None:
        destroy(**options)
        held.is_destroyed.set()

    monkeypatch.setattr(DBOS, "destroy", end)
    yield held
    held.may_go_on.set()


async def test_while_the_engine_waits_for_its_database_the_process_goes_on(
    tmp_path: Path, held_launch: HeldLaunch
) -> None:
    runs = open_at(tmp_path)
    launching = asyncio.create_task(runs.launch())
    assert await asyncio.to_thread(held_launch.has_begun.wait, 120)
    assert (await runs.read_figures()).problem is None
    assert not launching.done()
    held_launch.may_go_on.set()
    await launching
    await runs.start(ASKED, run_id="one")
    assert (await runs.finish("one")).status == "done"
    await runs.aclose()


async def test_a_launch_that_is_given_up_leaves_no_engine(tmp_path: Path, held_launch: HeldLaunch) -> None:
    runs = open_at(tmp_path)
    launching = asyncio.create_task(runs.launch())
    assert await asyncio.to_thread(held_launch.has_begun.wait, 120)
    launching.cancel()
    await asyncio.gather(launching, return_exceptions=True)
    held_launch.may_go_on.set()
    # the launch is first given up while it waits, then undone once it has come through
    assert await asyncio.to_thread(held_launch.is_destroyed.wait, 120)
    assert _dbos._dbos_global_instance is None
    await runs.start(ASKED, run_id="one")
    assert (await runs.finish("one")).status == "done"
    await runs.aclose()


class SetClock:
    """The module ``time`` of a machine whose clock can be set."""

    monotonic = staticmethod(time.monotonic)
    perf_counter = staticmethod(time.perf_counter)

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def time(self) -> float:
        return time.time() + self.ahead_s


async def test_a_timer_ends_when_the_clock_is_set_past_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SetClock()
    monkeypatch.setattr("retinue.workflows.durable.run_context.time", clock)
    monkeypatch.setattr("retinue.workflows.durable.run_context.CLOCK_LOOK_S", 0.02)

    async def body(context: RunContext, request: RunRequest) -> Any:
        await context.wait_until("t", time.time() + 86_400, at_most_s=float("inf"))

    runs = open_at(tmp_path, body=body)
    await runs.start(ASKED, run_id="r")
    async for event in runs.follow("r"):
        if event.step == "t":
            break
    clock.ahead_s = 90_000.0
    assert (await asyncio.wait_for(runs.finish("r"), 30)).status == "done"
    await runs.aclose()
