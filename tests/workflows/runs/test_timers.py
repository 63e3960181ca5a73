"""A timer of a run ends at its time, however often the run was interrupted."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from retinue.workflows.runs.ports import RunContext
from retinue.workflows.runs.records import RunRequest
from tests.workflows.implementations import Open

FACTS = {"kind": "timer", "until": "soon"}


def asked(until: float) -> RunRequest:
    return RunRequest(name="test", definition={}, input=until)


async def wait(context: RunContext, request: RunRequest) -> Any:
    await context.wait_until("t", request.input, at_most_s=60, facts=FACTS)
    return time.time()


async def test_a_timer_ends_at_its_time_and_tells_of_both_ends(open_runs: Open) -> None:
    until = time.time() + 0.2
    async with open_runs(wait) as runs:
        await runs.start(asked(until), run_id="r")
        ended_at = (await runs.finish("r")).get()
        assert ended_at >= until
        events = [one for one in await runs.list_events("r") if one.step]
        assert [(one.kind, one.step, one.facts["until"]) for one in events] == [
            ("step_started", "t", "soon"),
            ("step_finished", "t", "soon"),
        ]
        assert events[1].facts["duration_ms"] >= 0


async def test_a_time_that_is_over_is_not_waited_for(open_runs: Open) -> None:
    async with open_runs(wait) as runs:
        await runs.start(asked(0.0), run_id="r")
        assert (await asyncio.wait_for(runs.finish("r"), 30)).status == "done"


async def test_the_longest_wait_bounds_a_timer_whose_clock_is_wrong(open_runs: Open) -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        await context.wait_until("t", time.time() + 86_400, at_most_s=0.01)

    async with open_runs(body) as runs:
        await runs.start(asked(0.0), run_id="r")
        assert (await asyncio.wait_for(runs.finish("r"), 30)).status == "done"


async def test_a_cancelled_timer_is_resumed_until_the_time_that_it_began_with(open_runs: Open) -> None:
    async with open_runs(wait) as runs:
        until = time.time() + 1.0
        await runs.start(asked(until), run_id="r")
        async for event in runs.follow("r"):
            if event.step == "t":
                break
        assert (await runs.cancel("r")).status == "cancelled"
        await runs.finish("r")
        await runs.resume("r")
        assert (await runs.finish("r")).get() >= until
