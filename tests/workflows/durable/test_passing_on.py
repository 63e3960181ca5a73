"""A run that is released to another execution ends there, and not here as well."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from retinue.workflows.durable.dbos_engine import Invocation
from retinue.workflows.durable.executions import Executions
from retinue.workflows.durable.executions_here import ExecutionsHere
from retinue.workflows.runs.records import RunRecord, RunRequest


@pytest.mark.parametrize(
    ("is_released", "last_executor", "is_replaced", "emits"),
    [
        (False, "here-1", False, 1),
        (True, "here-1", False, 0),
        (False, "other-1", False, 0),
        (False, "here-1", True, 0),
    ],
)
async def test_only_the_execution_that_ends_a_run_emits_its_end(
    is_released: bool, last_executor: str, is_replaced: bool, emits: int
) -> None:
    """Not one whose run was released, nor one whose run another node or a later execution here took over."""
    record = RunRecord(
        id="r", request=RunRequest("flow", {}, {}), status="done", started_at=1.0, finished_at=2.0
    )
    row = SimpleNamespace(record=record, ended=True, root="r", last_executor=last_executor)
    emitted: list[Any] = []

    async def find(ids: list[str]) -> dict[str, Any]:
        return {"r": row}

    executions: Any = Executions.__new__(Executions)
    executions._closing = False
    executions._rows = SimpleNamespace(find=find)
    executions._events = SimpleNamespace(add=emitted.append)
    executions.here = ExecutionsHere()
    executions._taken_up, executions._sizes = {}, {}
    executions.lease = SimpleNamespace(executor="here-1")
    execution, _ = executions.here.begin(Invocation("r", "owner", ()))
    execution.root, execution.is_released = "r", is_released
    if is_replaced:
        executions.here.begin(Invocation("r", "later owner", ()))
    engine = asyncio.create_task(asyncio.sleep(0))
    events = SimpleNamespace(emitted=SimpleNamespace(resumed=0))
    await executions._settle(execution, events, engine)
    assert execution.ended.is_set()
    assert len(emitted) == emits
