"""Runs that release 0.1.0 stored are read and resumed, in the child process of ``test_durable_own_suite``.

``stored_runs.json`` holds the rows that its code wrote for three runs of the workflow below: ``done`` has
ended, ``cancelled`` was cancelled and ``waiting`` left behind while both branches waited for a signal.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import sqlalchemy as sa

from retinue.core.call import Hop, TraceContext
from retinue.core.errors import StateError
from retinue.testing.memory_caller import MemoryCaller
from retinue.workflows.definitions.loading import load
from retinue.workflows.definitions.run_forms import (
    BranchRun,
    NestedRun,
    WholeRun,
    parse_form,
    render_form,
)
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.runs import DurableOptions, DurableRuns
from retinue.workflows.interpreter.frame import Tools
from retinue.workflows.interpreter.step_loop import Interpreter
from retinue.workflows.library import Library, StoredText, WorkflowBundle, bundle
from retinue.workflows.orchestrator import Orchestrator
from retinue.workflows.runs.records import Origin, RunRequest

INNER = """
name: inner
input: {type: object, properties: {n: {type: integer}}, required: [n]}
steps:
- {id: one, skill: add, with: {n: "${{ input.n }}"}, compensate: {skill: undo, with: {of: one}}}
- {id: ok, wait_for: {topic: inner, timeout: 1h}}
- {id: two, skill: add}
"""
OUTER = """
name: outer
settings: {max_duration: 23h, retry: {attempts: 2, delay: 1ms}}
input: {type: object, properties: {n: {type: integer}}, required: [n]}
steps:
- {id: first, skill: add, compensate: {skill: undo}}
- id: side
  parallel: {mode: all}
  timeout: 22h
  branches:
    left: [{id: l1, skill: add}, {id: deep, workflow: inner}, {id: l2, skill: add}]
    right:
    - {id: r1, skill: add}
    - {id: ready, wait_for: {topic: right}}
    - {id: r2, skill: add, with: {n: "${{ steps.first.output.n + steps.ready.output }}"}}
- id: each
  timeout: 22h
  foreach: {in: "${{ [1, 2] }}"}
  steps: [{id: item, skill: add, with: {n: "${{ loop.item }}"}}]
- {id: vote, parallel: {mode: vote, agents: [one, two], prompt: "7"}}
- id: last
  skill: add
  with: {n: "${{ steps.side.output.left.n + steps.side.output.right.n + steps.each.output[1].n }}"}
"""
ORIGIN = Origin(
    frozenset({"mesh", "exposed"}),
    "ada",
    TraceContext(
        "trace-1", path=(Hop("caller", "skill"),), calls_left=1000, baggage={"a": "b"}, trusted=True
    ),
    "sha256:outer",
)
STORED = orjson.loads((Path(__file__).parent / "stored_runs.json").read_bytes())
REQUESTS = {row["workflow_uuid"]: row for row in STORED["tables"]["workflow_input"]}
SECONDS = max(row["at"] for row in STORED["tables"]["retinue_events"])
"""When the runs were stored, which the interpreter takes for now: their time limits are not over."""


class _Inner:
    """A shelf with the nested workflow."""

    async def list_names(self) -> list[str]:
        return ["inner"]

    async def find_text(self, name: str, version: str | None = None) -> StoredText | None:
        return StoredText(INNER, "inner", "sha256:1") if name == "inner" else None


def offer_skills() -> MemoryCaller:
    async def add(given: Any) -> Any:
        return {"n": given["n"] + 1}

    async def answer(given: Any) -> Any:
        return {"n": int(given["prompt"])}

    caller = MemoryCaller()
    caller.offer("add", add, agent="adder")
    for agent in ("one", "two"):
        caller.offer("ask", answer, agent=agent, roles=["execute"])
    return caller


@asynccontextmanager
async def open_stored(folder: Path, caller: MemoryCaller) -> AsyncIterator[DurableRuns]:
    """The stored runs, at the node that left them behind."""
    database = RunDatabase(f"sqlite:///{folder}/runs.db")
    await database.prepare()
    with database.engine.begin() as connection:
        for table, rows in STORED["tables"].items():
            for row in rows:
                columns = ", ".join(row)
                values = ", ".join(f":{column}" for column in row)
                connection.execute(sa.text(f"INSERT INTO {table} ({columns}) VALUES ({values})"), row)
    database.close()
    (folder / "nodes").mkdir()
    (folder / "nodes" / "host").write_text(STORED["host"])
    runs = DurableRuns(
        Interpreter(Tools(caller, clock=lambda: SECONDS)).run,
        url=f"sqlite:///{folder}/runs.db",
        nodes=folder / "nodes",
        options=DurableOptions(poll_s=0.05, keep_days=100_000),
    )
    try:
        yield runs
    finally:
        await runs.aclose()


async def bundle_outer() -> WorkflowBundle:
    return await bundle(Library([_Inner()]), load(OUTER))


async def test_a_run_of_the_previous_release_is_read_with_its_origin_steps_and_events(tmp_path: Path) -> None:
    async with open_stored(tmp_path, offer_skills()) as runs:
        record = await runs.get("done")
        assert (record.get(), record.calls, record.request.origin) == ({"n": 18}, 12, ORIGIN)
        states = {one.id: one.status for one in await runs.list_all()}
        assert states == {"done": "done", "cancelled": "cancelled", "waiting": "running"}
        steps = {step.step: step.outcome.value for step in await runs.list_steps("done")}
        assert steps["side.left/deep/two"]["value"] == {"n": 6}
        events = await runs.list_events("done")
        assert (events[0].kind, events[-1].kind) == ("run_started", "run_finished")


async def test_the_same_request_is_still_that_run(tmp_path: Path) -> None:
    whole = await bundle_outer()
    async with open_stored(tmp_path, offer_skills()) as runs:
        orchestrator = Orchestrator(runs)
        record = await orchestrator.start(
            whole.loaded.definition, {"n": 0}, run_id="done", origin=ORIGIN, nested=whole.nested
        )
        assert record.get() == {"n": 18}


@pytest.mark.parametrize("run_id", ["cancelled", "waiting"])
async def test_a_run_of_the_previous_release_is_resumed_and_repeats_no_recorded_step(
    tmp_path: Path, run_id: str
) -> None:
    caller = offer_skills()
    async with open_stored(tmp_path, caller) as runs:
        # Signalled before it is resumed: the time that its steps wait at most is over.
        await runs.signal(f"{run_id}/side.left/deep", "inner", {"n": 5})
        await runs.signal(f"{run_id}/side.right", "right", 5)
        await runs.resume(run_id)
        record = await runs.finish(run_id)
        assert (record.get(), record.calls) == ({"n": 18}, 12)
    recorded = {"first", "side.left/l1", "side.left/deep/one", "side.right/r1"}
    called = {call.idempotency_key.removeprefix(f"{run_id}/") for call in caller.calls}
    assert called == {
        *("side.left/deep/two", "side.left/l2", "side.right/r2", "each#1/item", "each#2/item"),
        *("vote.one/execute", "vote.two/execute", "last"),
    }
    assert recorded.isdisjoint(called)
    assert {call.origin.caller for call in caller.calls} == {"ada"}


@pytest.mark.parametrize("run_id", ["cancelled", "done"])
async def test_a_run_whose_journal_another_release_wrote_is_read_but_neither_resumed_nor_forked(
    tmp_path: Path, run_id: str
) -> None:
    """This release would replay other calls than those which were recorded, or leave the run in its queue."""
    async with open_stored(tmp_path, offer_skills()) as runs:
        database = RunDatabase(f"sqlite:///{tmp_path}/runs.db")
        await database.write(
            lambda c: c.exec_driver_sql("UPDATE workflow_status SET application_version = 'engine-0'")
        )
        database.close()
        refused = "was stored in the form engine-0 of another release"
        if run_id == "cancelled":
            with pytest.raises(StateError, match=refused) as caught:
                await runs.resume(run_id)
            assert "resume it with a process of that release" in caught.value.remedy
        with pytest.raises(StateError, match=refused):
            await runs.fork(run_id, from_step="side", new_run_id="fork")
        # It is as it was.
        assert [one.id for one in await runs.list_all()].count("fork") == 0
        assert (await runs.get(run_id)).status == run_id
        assert await runs.list_steps(run_id)


async def test_stored_requests_are_written_as_they_were() -> None:
    """So that a node of the previous release reads them too, and an id used again means the same run."""
    kinds = {"done": WholeRun, "done/side.left": BranchRun, "done/side.left/deep": NestedRun}
    for run_id, row in REQUESTS.items():
        stored = orjson.loads(row["inputs"])["positionalArgs"][0]
        request = RunRequest.from_json(stored)
        assert request.to_json() == stored
        form = parse_form(request.definition)
        assert isinstance(form, kinds.get(run_id, (WholeRun, BranchRun, NestedRun)))
        assert render_form(form) | ({"nested": {}} if not form.nested else {}) == {
            **request.definition,
            "nested": request.definition.get("nested", {}),
        }
