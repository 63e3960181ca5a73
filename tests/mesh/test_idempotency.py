"""Outcomes by idempotency key: one execution for all who ask with the same key."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.local import local_dispatcher
from retinue.core.call import Answer
from retinue.core.errors import BusyError, ExecutionFailedError, KeyConflictError
from retinue.mesh.idempotency import OutcomeCache
from tests.mesh.scripted import make_call


class Skill:
    """Counts how often it ran; raises what it is told to, once each."""

    def __init__(self, *failures: BaseException) -> None:
        self.ran = 0
        self.gate: asyncio.Event | None = None
        self._failures = list(failures)

    async def __call__(self) -> Answer:
        self.ran += 1
        if self.gate is not None:
            await self.gate.wait()
        if self._failures:
            raise self._failures.pop(0)
        return Answer(value=self.ran)


def ask(arguments: Any = None, key: str | None = "k") -> Any:
    return make_call("work", arguments or {}, idempotency_key=key)


async def test_a_repeated_key_gets_the_first_outcome() -> None:
    outcomes, skill = OutcomeCache(), Skill()
    assert [(await outcomes.run_once("a", ask({"x": 1}), skill)).value for _ in range(3)] == [1, 1, 1]
    assert (await outcomes.run_once("a", ask({"x": 1}, key="other"), skill)).value == 2
    assert (await outcomes.run_once("b", ask({"x": 1}), skill)).value == 3


async def test_calls_without_a_key_are_run_each_time() -> None:
    outcomes, skill = OutcomeCache(), Skill()
    assert [(await outcomes.run_once("a", ask(key=None), skill)).value for _ in range(2)] == [1, 2]


async def test_a_key_used_with_other_arguments_is_a_conflict() -> None:
    outcomes, skill = OutcomeCache(), Skill()
    await outcomes.run_once("a", ask({"x": 1, "y": 2}), skill)
    await outcomes.run_once("a", ask({"y": 2, "x": 1}), skill)
    with pytest.raises(KeyConflictError):
        await outcomes.run_once("a", ask({"x": 2, "y": 2}), skill)


async def test_a_repeated_key_waits_for_the_one_in_progress() -> None:
    outcomes, skill = OutcomeCache(), Skill()
    skill.gate = asyncio.Event()
    asked = [asyncio.create_task(outcomes.run_once("a", ask(), skill)) for _ in range(3)]
    await asyncio.sleep(0)
    asked[1].cancel()  # who gives up takes nothing from the others
    skill.gate.set()
    assert [(await task).value for task in (asked[0], asked[2])] == [1, 1]
    assert skill.ran == 1


async def test_who_waits_gets_the_outcome_of_a_first_call_that_is_cut_off() -> None:
    outcomes, skill = OutcomeCache(), Skill()
    skill.gate = asyncio.Event()
    first, second = (asyncio.create_task(outcomes.run_once("a", ask(), skill)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    skill.gate.set()
    assert (await second).value == 1
    assert skill.ran == 1


async def test_failures_of_the_skill_are_outcomes_and_refusals_are_not() -> None:
    outcomes = OutcomeCache()
    failing = Skill(ExecutionFailedError("said so"))
    for _ in range(2):
        with pytest.raises(ExecutionFailedError, match="said so"):
            await outcomes.run_once("a", ask(), failing)
    assert failing.ran == 1
    busy = Skill(BusyError("full", 1))
    with pytest.raises(BusyError):
        await outcomes.run_once("a", ask(key="b"), busy)
    assert (await outcomes.run_once("a", ask(key="b"), busy)).value == 2


async def test_outcomes_are_bounded_in_time_number_and_bytes() -> None:
    now = 0.0
    outcomes, skill = OutcomeCache(kept_s=10, count=2, size_bytes=1000, clock=lambda: now), Skill()

    async def ran(key: str, **arguments: Any) -> bool:
        before = skill.ran
        await outcomes.run_once("a", ask(arguments, key=key), skill)
        return skill.ran > before

    assert [await ran(key) for key in ("1", "2", "3", "3", "2", "1")] == [
        True,
        True,
        True,
        False,
        False,
        True,
    ]
    now = 11.0
    assert await ran("1")
    big = "x" * 600
    assert [await ran(key, big=big) for key in ("4", "5", "5", "4")] == [True, True, False, True]


async def test_an_agent_answers_a_repeated_request_with_its_first_outcome() -> None:
    agent, ran = Agent("a"), 0

    @agent.skill
    async def work() -> int:
        nonlocal ran
        ran += 1
        return ran

    dispatcher = local_dispatcher(agent)
    for _ in range(2):
        assert (await dispatcher.dispatch(make_call("work", {}, idempotency_key="k"))).value == 1
    outcome = await dispatcher.dispatch(make_call("work", {}, idempotency_key="l"))
    assert outcome.value == 2
