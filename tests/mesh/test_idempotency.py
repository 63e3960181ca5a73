"""Outcomes by idempotency key: one execution for all who ask with the same key."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.local import local_dispatcher
from retinue.core.call import Answer, Part, Principal
from retinue.core.errors import BusyError, CallTimedOutError, ExecutionFailedError, KeyConflictError
from retinue.mesh.idempotency import OutcomeCache, StoredOutcome
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


class Shelf:
    """Outcomes that outlive the cache, as those in a file outlive a process."""

    def __init__(self) -> None:
        self.outcomes: dict[bytes, StoredOutcome] = {}

    async def find(self, key: bytes) -> StoredOutcome | None:
        return self.outcomes.get(key)

    async def keep(self, key: bytes, outcome: StoredOutcome) -> None:
        await asyncio.sleep(0)
        self.outcomes[key] = outcome


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


async def test_a_call_goes_on_after_the_time_of_its_caller_and_its_repetition_joins_it() -> None:
    outcomes, skill = OutcomeCache(), Skill()
    skill.gate = asyncio.Event()
    now = asyncio.get_running_loop().time()
    overdue = make_call("work", {}, idempotency_key="k", deadline=now)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await outcomes.run_once("a", overdue, skill)
    again = asyncio.create_task(outcomes.run_once("a", ask(), skill))
    await asyncio.sleep(0)
    skill.gate.set()
    assert ((await again).value, skill.ran) == (1, 1)


@pytest.mark.parametrize("is_overdue", [False, True])
async def test_a_call_that_nobody_waits_for_is_given_up_in_the_end_and_then_runs_again(
    is_overdue: bool,
) -> None:
    soon, never = 0.01, 60.0
    outcomes, skill = OutcomeCache(after_time_out_s=soon, after_disconnect_s=never), Skill()
    if not is_overdue:
        outcomes = OutcomeCache(after_time_out_s=never, after_disconnect_s=soon)
    skill.gate = asyncio.Event()
    stopped = asyncio.Event()

    async def run() -> Answer:
        try:
            return await skill()
        finally:
            stopped.set()

    deadline = asyncio.get_running_loop().time() if is_overdue else None
    first = asyncio.create_task(
        outcomes.run_once("a", make_call("work", {}, idempotency_key="k", deadline=deadline), run)
    )
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait_for(stopped.wait(), 30)
    skill.gate.set()
    assert (await outcomes.run_once("a", ask(), run)).value == 2


async def test_an_exception_of_the_skill_is_the_outcome_of_all_who_ask() -> None:
    outcomes, skill = OutcomeCache(), Skill(ValueError("declined"))
    skill.gate = asyncio.Event()
    asked = [asyncio.create_task(outcomes.run_once("a", ask(), skill)) for _ in range(2)]
    await asyncio.sleep(0)
    skill.gate.set()
    for task in asked:
        with pytest.raises(ExecutionFailedError, match="declined"):
            await task
    with pytest.raises(ExecutionFailedError, match="declined"):
        await outcomes.run_once("a", ask(), skill)
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

    async def ran(key: str, bytes_of_answer: int = 0) -> bool:
        before = skill.ran

        async def run() -> Answer:
            await skill()
            return Answer("x" * bytes_of_answer)

        await outcomes.run_once("a", ask(key=key), run)
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
    assert [await ran(key, 600) for key in ("4", "5", "5", "4")] == [True, True, False, True]


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


async def test_a_function_in_a_thread_is_never_run_beside_itself_for_one_key() -> None:
    """It cannot be stopped: whoever repeats its call waits for its end."""
    agent, ran, gate = Agent("a"), 0, threading.Event()

    @agent.skill(timeout_s=0.05)
    def work() -> int:
        nonlocal ran
        ran += 1
        gate.wait(60)
        return ran

    dispatcher = local_dispatcher(agent)
    first = await dispatcher.dispatch(make_call("work", {}, idempotency_key="k"))
    assert isinstance(first.error, CallTimedOutError)
    second = asyncio.create_task(dispatcher.dispatch(make_call("work", {}, idempotency_key="k")))
    await asyncio.sleep(0)
    gate.set()
    assert (await second).value == 1
    assert ran == 1


async def test_a_skill_with_a_key_is_cut_off_at_its_own_limit() -> None:
    agent, stopped = Agent("a"), asyncio.Event()

    @agent.skill(timeout_s=0.05)
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    outcome = await local_dispatcher(agent).dispatch(make_call("work", {}, idempotency_key="k"))
    assert isinstance(outcome.error, CallTimedOutError)
    await asyncio.wait_for(stopped.wait(), 30)


async def test_a_repeated_key_gets_the_first_answer_after_a_restart_with_all_that_belongs_to_it() -> None:
    shelf = Shelf()
    first = Answer(
        value={"n": [1, 2.5, None]},
        parts=(Part.text("a"), Part.image(b"png"), Part.resource("x:1", "b")),
        usage={"tokens": 3},
        warnings=("old",),
        meta={"k": "v"},
    )

    async def run() -> Answer:
        return first

    await OutcomeCache(stored=shelf).run_once("a", ask({"x": 1}), run)
    restarted, skill = OutcomeCache(stored=shelf), Skill()
    assert [await restarted.run_once("a", ask({"x": 1}), skill) for _ in range(2)] == [first, first]
    assert skill.ran == 0


async def test_an_outcome_is_found_after_a_restart_by_its_caller_agent_and_key_only() -> None:
    shelf, skill = Shelf(), Skill()
    await OutcomeCache(stored=shelf).run_once("a", ask({"x": 1}), skill)
    restarted = OutcomeCache(stored=shelf)
    ada = make_call("work", {"x": 1}, idempotency_key="k", principal=Principal("ada", "token"))
    assert (await restarted.run_once("a", ada, skill)).value == 2
    assert (await restarted.run_once("b", ask({"x": 1}), skill)).value == 3
    assert (await restarted.run_once("a", ask({"x": 1}, key="other"), skill)).value == 4
    with pytest.raises(KeyConflictError):
        await restarted.run_once("a", ask({"x": 2}), skill)
    assert (await restarted.run_once("a", ask({"x": 1}), skill)).value == 1


async def test_failures_of_the_skill_are_found_after_a_restart_and_refusals_are_not() -> None:
    shelf = Shelf()
    before = OutcomeCache(stored=shelf)
    failing = Skill(ValueError("declined\nfor a reason"), BusyError("full", 1))
    for key in "kl":
        with pytest.raises((ExecutionFailedError, BusyError)):
            await before.run_once("a", ask(key=key), failing)
    restarted = OutcomeCache(stored=shelf)
    with pytest.raises(ExecutionFailedError) as failure:
        await restarted.run_once("a", ask(), failing)
    assert failure.value.message == "declined"
    assert failure.value.data == {"exception": "ValueError", "detail": "for a reason", "skill": "work"}
    assert (await restarted.run_once("a", ask(key="l"), failing)).value == 3


async def test_an_execution_that_is_given_up_while_its_outcome_is_stored_keeps_it() -> None:
    shelf, storing, given_up = Shelf(), asyncio.Event(), asyncio.Event()

    async def hang(key: bytes, outcome: StoredOutcome) -> None:
        storing.set()
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()

    shelf.keep = hang  # type: ignore[method-assign]
    outcomes, skill = OutcomeCache(stored=shelf, after_disconnect_s=0.01), Skill()
    first = asyncio.create_task(outcomes.run_once("a", ask(), skill))
    await storing.wait()
    first.cancel()
    await asyncio.wait_for(given_up.wait(), 30)
    assert (await outcomes.run_once("a", ask(), skill)).value == 1
