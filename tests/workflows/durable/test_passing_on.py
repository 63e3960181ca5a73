"""A run that is released to another execution ends there, and not here as well."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from retinue.workflows.durable.executions import Executions
from retinue.workflows.durable.executions_here import Execution, ExecutionsHere
from retinue.workflows.runs.records import RunRecord, RunRequest


@pytest.mark.parametrize("is_released", [False, True])
async def test_only_the_execution_that_ends_a_run_emits_its_end(is_released: bool) -> None:
    record = RunRecord(
        id="r", request=RunRequest("flow", {}, {}), status="done", started_at=1.0, finished_at=2.0
    )
    row = SimpleNamespace(record=record, ended=True, root="r")
    emitted: list[Any] = []

    async def find(ids: list[str]) -> dict[str, Any]:
        return {"r": row}

    executions: Any = Executions.__new__(Executions)
    executions._closing = False
    executions._rows = SimpleNamespace(find=find)
    executions._events = SimpleNamespace(add=emitted.append)
    executions.here = ExecutionsHere()
    executions._taken_up, executions._sizes = {}, {}
    execution = Execution("r", root="r", is_released=is_released)
    engine = asyncio.create_task(asyncio.sleep(0))
    events = SimpleNamespace(emitted=SimpleNamespace(resumed=0))
    await executions._settle(execution, events, engine)
    assert execution.ended.is_set()
    assert len(emitted) == (0 if is_released else 1)
