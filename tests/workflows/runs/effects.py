"""Requests, effects and events of runs, as the suite of the durability ports uses them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from retinue.workflows.runs.ports import Runs, StepCount
from retinue.workflows.runs.records import RunEvent, RunRequest


def ask(value: Any = None, **definition: Any) -> RunRequest:
    return RunRequest(name="test", definition=definition, input=value)


def gives(value: Any) -> Any:
    async def effect() -> Any:
        return value

    return effect


def raises(error: BaseException) -> Any:
    async def effect() -> Any:
        raise error

    return effect


def counting(calls: int) -> StepCount:
    """The count of an effect that makes so many calls."""
    return StepCount(lambda outcome: replace(outcome, calls=calls), lambda outcome: None)


async def waits_for_ever() -> None:
    await asyncio.Event().wait()


async def until(runs: Runs, run_id: str, found: Callable[[RunEvent], bool]) -> RunEvent:
    async with asyncio.timeout(60):
        async for event in runs.follow(run_id):
            if found(event):
                return event
    raise AssertionError("the run ended without that event")


def started(step: str) -> Callable[[RunEvent], bool]:
    return lambda event: event.kind == "step_started" and event.step == step
