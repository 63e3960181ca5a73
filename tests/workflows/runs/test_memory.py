"""What only the in-memory runs do: forget old runs, and stop with their process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retinue.core.errors import UnknownRunError
from retinue.testing.memory_runs import MemoryRuns
from retinue.workflows.runs.ports import RunContext
from retinue.workflows.runs.records import RunRequest


def ask(value: Any = None) -> RunRequest:
    return RunRequest(name="test", definition={}, input=value)


async def test_the_oldest_ended_runs_are_forgotten_with_their_children() -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        if request.input is None:
            await context.wait("w", [await context.child("c", ask("child"))])

    runs = MemoryRuns(body, kept=2)
    for name in ("one", "two", "three", "four"):
        await runs.start(ask(), run_id=name)
        await runs.finish(name)
    assert [record.id for record in await runs.list_all()] == ["four", "three", "two"]
    for gone in ("one", "one/c"):
        with pytest.raises(UnknownRunError):
            await runs.get(gone)


async def test_closing_cancels_what_still_runs() -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        await asyncio.Event().wait()

    runs = MemoryRuns(body)
    await runs.start(ask(), run_id="r")
    await runs.aclose()
    assert (await runs.get("r")).status == "cancelled"


async def test_times_come_from_the_clock_given() -> None:
    ticks = iter(range(100, 200))

    async def body(context: RunContext, request: RunRequest) -> Any:
        return None

    runs = MemoryRuns(body, clock=lambda: float(next(ticks)))
    await runs.start(ask(), run_id="r")
    record = await runs.finish("r")
    assert record.started_at == 100
    assert record.finished_at is not None
    assert record.finished_at > record.started_at
