"""The inside of an in-memory run: durable calls with their rules, journal and replay."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from retinue.workflows.json_copies import copy_json, encode_json
from retinue.workflows.run_records import (
    Child,
    ChildOutcome,
    RunRequest,
    StepOutcome,
)
from retinue.workflows.runs import (
    Count,
    DurableRuleError,
    Effect,
    WaitMode,
)
from retinue.workflows.turns import Turns, run_effect
from retinue.workflows.twin.state import Entry, Run, Services


class MemoryContext:
    """A RunContext. ``broken_rule`` is set once a rule was broken, and fails the run.

    ``calls`` is what the body said that it used; ``resumed`` = it stopped before, maybe amid a call.
    """

    def __init__(self, run: Run, services: Services, *, resumed: bool = False) -> None:
        self.calls: int | None = None
        self._run = run
        self._services = services
        self._turns = Turns(run.record.id)
        self._position = 0
        self._given_up: set[str] = set()
        self._may_repeat = resumed

    @property
    def broken_rule(self) -> DurableRuleError | None:
        return self._turns.broken_rule

    @property
    def run_id(self) -> str:
        return self._run.record.id

    @property
    def patience_s(self) -> float:
        """Nothing else stopped with a run that was resumed here."""
        return 0.0

    def tell_calls(self, calls: int | None) -> None:
        self.calls = calls

    async def step(
        self,
        path: str,
        effect: Effect,
        *,
        timeout_s: float,
        facts: Mapping[str, Any] | None = None,
        count: Count | None = None,
    ) -> StepOutcome:
        with self._turns.take(path):
            recorded = self._replay("step", path)
            if recorded is not None:
                return StepOutcome.from_json(recorded)
            return await self._run_seen("step", path, effect, timeout_s, facts, count)

    async def child(self, path: str, request: RunRequest) -> Child:
        with self._turns.take(path):
            recorded = self._replay("child", path)
            if recorded is not None:
                return Child(recorded["run_id"], path)
            child_id = f"{self.run_id}/{path}"
            request = RunRequest.from_json(copy_json(request.to_json(), f"the request of run {child_id}"))
            self._services.start(request, child_id, self._run)
            self._record("child", path, {"run_id": child_id})
            return Child(child_id, path)

    async def wait(
        self, path: str, children: Sequence[Child], mode: WaitMode = "all"
    ) -> tuple[ChildOutcome, ...]:
        with self._turns.take(path):
            recorded = self._replay("wait", path)
            if recorded is None:
                runs = [self._services.find(child.run_id) for child in children]
                for run in runs:
                    if run.record.id not in self._given_up:
                        self._services.resume(run)
                ended = await (_wait_first(runs) if mode == "first" else _wait_all(runs))
                recorded = [
                    {"run_id": run.record.id, "status": run.record.status, "duration_ms": _duration_ms(run)}
                    | StepOutcome(run.record.value, run.record.fault, run.record.calls).to_json()
                    for run in ended
                ]
                self._record("wait", path, recorded)
            by_id = {child.run_id: child for child in children}
            return tuple(_read_child_outcome(by_id, item) for item in recorded)

    async def cancel(self, path: str, children: Sequence[Child]) -> None:
        with self._turns.take(path):
            self._given_up.update(child.run_id for child in children)
            if self._replay("cancel", path) is None:
                for child in children:
                    await self._services.stop(self._services.find(child.run_id))
                self._record("cancel", path, True)

    async def sleep(self, path: str, seconds: float) -> None:
        with self._turns.take(path):
            if self._replay("sleep", path) is None:
                await self._services.sleep(seconds)
                self._record("sleep", path, True)

    async def receive(
        self, path: str, topic: str, timeout_s: float, *, facts: Mapping[str, Any] | None = None
    ) -> StepOutcome:
        with self._turns.take(path):
            recorded = self._replay("receive", path)
            if recorded is not None:
                return StepOutcome.from_json(recorded)

            async def take() -> Any:
                return await self._run.take_signal(topic)

            return await self._run_seen("receive", path, take, timeout_s, facts)

    async def _run_seen(
        self,
        kind: str,
        path: str,
        effect: Effect,
        timeout_s: float,
        given: Mapping[str, Any] | None,
        count: Count | None = None,
    ) -> StepOutcome:
        """Run an effect, record its outcome, and tell both in the events."""
        facts = dict(copy_json(dict(given or {}), f"the facts of step {path}"))
        self._emit("step_started", path, dict(facts))
        began = time.perf_counter()
        outcome = await run_effect(path, effect, timeout_s, count)
        if self._may_repeat:
            outcome = replace(outcome, calls=None)
        self._record(kind, path, outcome.to_json())
        facts.pop("input", None)
        facts["duration_ms"] = round((time.perf_counter() - began) * 1000, 3)
        if outcome.fault is not None:
            facts["error"] = outcome.fault.to_json()
        self._emit("step_finished", path, facts)
        return outcome

    def _replay(self, kind: str, path: str) -> Any:
        """The recorded outcome of this call when the run was here before, else None."""
        if self._position >= len(self._run.journal):
            return None
        entry = self._run.journal[self._position]
        if (entry.kind, entry.path) != (kind, path):
            raise self._turns.refuse(
                f"on replay the body asks for {kind} {path!r} where {entry.kind} {entry.path!r} was recorded"
            )
        self._position += 1
        return orjson.loads(entry.outcome)

    def _record(self, kind: str, path: str, outcome: Any) -> None:
        self._run.journal.append(Entry(kind, path, encode_json(outcome, f"step {path}")))
        self._position = len(self._run.journal)
        self._may_repeat = False

    def _emit(self, kind: Any, path: str, facts: Mapping[str, Any]) -> None:
        self._run.emit(kind, path, self._services.clock(), facts)


async def _wait_all(runs: Sequence[Run]) -> list[Run]:
    for run in runs:
        await run.ended.wait()
    return list(runs)


async def _wait_first(runs: Sequence[Run]) -> list[Run]:
    waiters = [asyncio.create_task(run.ended.wait()) for run in runs]
    try:
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        return [next(run for run, waiter in zip(runs, waiters, strict=True) if waiter.done())]
    finally:
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)


def _read_child_outcome(children: Mapping[str, Child], item: Mapping[str, Any]) -> ChildOutcome:
    outcome = StepOutcome.from_json(item)
    child = children[item["run_id"]]
    return ChildOutcome(
        child, item["status"], outcome.value, outcome.fault, item["duration_ms"], outcome.calls
    )


def _duration_ms(run: Run) -> float:
    ended_at = run.record.finished_at
    return 0.0 if ended_at is None else round((ended_at - run.record.started_at) * 1000, 3)
