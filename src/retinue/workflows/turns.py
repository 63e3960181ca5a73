"""The rules that every RunContext enforces on its body, and how it runs an effect (see ``runs``)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from retinue.core.errors import (
    CallCancelledError,
    CallTimedOutError,
    ExecutionFailedError,
    RetinueError,
)
from retinue.workflows.json_copies import copy_json
from retinue.workflows.run_records import Fault, StepOutcome
from retinue.workflows.runs import Count, DurableRuleError, Effect


class Turns:
    """The one sequential thread of durable calls of a body; made in the body's own task.

    ``broken_rule`` is set once a rule was broken, and fails the run.
    """

    def __init__(self, run_id: str) -> None:
        self.broken_rule: DurableRuleError | None = None
        self._run_id = run_id
        self._task = asyncio.current_task()
        self._path: str | None = None
        self._used: set[str] = set()

    @contextmanager
    def take(self, path: str) -> Iterator[None]:
        """Hold the thread for one call; raises DurableRuleError."""
        if asyncio.current_task() is not self._task:
            raise self.refuse(
                f"durable call {path!r} comes from a task other than the body's: use child runs"
            )
        if self._path is not None:
            raise self.refuse(f"durable call {path!r} while {self._path!r} is in flight: use child runs")
        if path in self._used:
            raise self.refuse(f"path {path!r} is used twice in run {self._run_id}")
        self._used.add(path)
        self._path = path
        try:
            yield
        finally:
            self._path = None

    def refuse(self, problem: str) -> DurableRuleError:
        """Note a broken rule; gives the error to raise."""
        error = DurableRuleError(problem)
        self.broken_rule = self.broken_rule or error
        return error


async def run_effect(path: str, effect: Effect, timeout_s: float, count: Count | None = None) -> StepOutcome:
    """The outcome of an effect; only a cancellation of the task it runs in gets through as an exception."""
    outcome = await _try_effect(path, effect, timeout_s)
    return outcome if count is None else replace(outcome, calls=count())


async def _try_effect(path: str, effect: Effect, timeout_s: float) -> StepOutcome:
    limit = asyncio.timeout(timeout_s)
    task = asyncio.current_task()
    try:
        async with limit:
            value: Any = await effect()
        return StepOutcome(copy_json(value, f"step {path}"))
    except asyncio.CancelledError:
        if task is not None and task.cancelling():
            raise
        return StepOutcome(fault=Fault.from_error(CallCancelledError(f"step {path}")))
    except RetinueError as error:
        return StepOutcome(fault=Fault.from_error(error))
    except Exception as error:  # noqa: BLE001  # a step never raises: whatever its effect does is data
        if limit.expired():
            return StepOutcome(fault=Fault.from_error(step_timed_out(path, timeout_s)))
        return StepOutcome(fault=Fault.from_error(ExecutionFailedError.from_exception(error)))


def step_timed_out(path: str, timeout_s: float) -> CallTimedOutError:
    """What a step over its limit is."""
    return CallTimedOutError(
        f"step {path}", timeout_s, layer="workflow step", setting=f"timeout of step {path}"
    )
