"""Bodies and own functions that break rules, or end in ways that a process must survive."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import nan
from typing import Any

import pytest

from retinue import Agent, CallTimedOutError, ExecutionFailedError, InvalidParametersError, Run, workflow
from retinue.core.json_values import find_nonfinite
from retinue.flows.arguments import arguments_as_json, to_json
from retinue.flows.body import HostedWorkflows
from retinue.flows.steps import mark_of
from retinue.flows.workflow import CodeWorkflow
from retinue.testing import run_workflow


def make_flow(name: str) -> CodeWorkflow:
    @workflow(name=name)
    async def flow(run: Run) -> str:
        return name

    return flow


async def test_workflows_that_one_function_makes_each_execute_their_own_runs() -> None:
    first, second = make_flow("first"), make_flow("second")
    assert first.definition.code == second.definition.code
    hosted = HostedWorkflows([first, second])
    assert hosted.find(first.hosted.code) is first
    assert hosted.find(second.hosted.code) is second
    assert HostedWorkflows([first]).find(second.hosted.code) is None


async def test_an_exit_in_a_body_or_an_own_function_is_a_failure_of_the_run() -> None:
    @workflow
    async def exits(run: Run) -> str:
        sys.exit(3)

    def exit_plainly() -> None:
        sys.exit(4)

    async def exit_later() -> None:
        sys.exit(5)

    def stop() -> None:
        raise StopIteration

    @workflow
    async def steps(run: Run) -> list[str]:
        messages = []
        for function in (exit_plainly, exit_later, stop):
            try:
                await run.step(function)
            except ExecutionFailedError as error:
                messages.append(error.message)
        return messages

    fault = (await run_workflow(exits)).record.fault
    assert fault is not None
    assert fault.type == "execution_error"
    assert "SystemExit: 3" in fault.message
    messages = (await run_workflow(steps)).get()
    assert [message.rpartition("failed: ")[2] for message in messages] == [
        "SystemExit: 4",
        "SystemExit: 5",
        "StopIteration",
    ]


async def test_an_iterator_as_an_argument_is_refused_with_the_remedy() -> None:
    def add(numbers: Any) -> int:
        return sum(numbers)

    @workflow
    async def adds(run: Run) -> int:
        return await run.step(add, numbers={"deep": [1], "lazy": (n for n in (1, 2))})

    fault = (await run_workflow(adds)).record.fault
    assert fault is not None
    assert "argument numbers of run.step(add): a generator can be read only once" in fault.message
    assert fault.remedy == "give a list: list(…)"


async def test_bytes_that_are_no_text_are_arguments_of_own_functions_and_refused_for_skills() -> None:
    async def measure(data: bytes) -> int:
        return len(data)

    @workflow
    async def measures(run: Run) -> int:
        return await run.step(measure, b"\xff\xfe")

    assert (await run_workflow(measures, crash_at_every_step=True)).get() == 2
    assert mark_of(b"\xff").digest != mark_of(b"\xfe").digest
    with pytest.raises(InvalidParametersError, match="no JSON value"):
        arguments_as_json("store", {"data": b"\xff"})


def test_sets_have_one_order_in_each_process() -> None:
    class Ordered(set[str]):
        """A set whose order is chosen, as hash seeds choose it."""

        def __iter__(self) -> Any:
            return iter(sorted(super().__iter__(), reverse=True))

    words = Ordered({"b", "a", "c"})
    assert to_json({"words": words, "pairs": [{("x", 2), ("x", 1)}]}) == {
        "words": ["a", "b", "c"],
        "pairs": [[["x", 1], ["x", 2]]],
    }
    assert arguments_as_json("count", {"words": words}) == {"words": ["a", "b", "c"]}
    assert mark_of(words).digest == mark_of({"a", "b", "c"}).digest


async def test_after_a_broken_rule_no_further_call_has_an_effect() -> None:
    effects: list[str] = []
    turn = 0

    async def note(text: str) -> None:
        effects.append(text)

    @workflow
    async def unsteady(run: Run) -> str:
        nonlocal turn
        turn += 1
        run.undo("tidy", {})
        for text in (f"turn {turn}", "second", "third"):
            try:
                await run.step(note, text)
            except Exception:  # noqa: BLE001 - what an author may write
                continue
        raise ValueError("the end")

    run = await run_workflow(unsteady, skills={"tidy": "done"}, crash_at_every_step=True)
    fault = run.record.fault
    assert fault is not None
    assert fault.type == "nondeterminism"
    assert effects == ["turn 1"]
    assert not run.calls


async def test_a_body_that_goes_on_for_ever_after_a_broken_rule_is_ended() -> None:
    turn = 0

    async def note(text: str) -> None: ...

    @workflow
    async def stubborn(run: Run) -> str:
        nonlocal turn
        turn += 1
        while True:
            try:
                await run.step(note, f"turn {turn}")
                await run.step(note, "again")
            except Exception:  # noqa: BLE001 - what an author may write
                continue

    run = await run_workflow(stubborn, crash_at_every_step=True)
    assert run.record.fault is not None
    assert run.record.fault.type == "nondeterminism"


async def test_an_attempt_of_a_plain_function_begins_after_the_thread_of_the_one_before() -> None:
    in_flight = threading.Semaphore(1)
    overlaps: list[bool] = []

    def work() -> str:
        overlaps.append(not in_flight.acquire(blocking=False))
        time.sleep(0.1 if len(overlaps) == 1 else 0)
        in_flight.release()
        return "done"

    @workflow
    async def retries(run: Run) -> str:
        try:
            await run.options(timeout_s=0.01).step(work)
        except CallTimedOutError:
            return await run.step(work)
        return "no time limit"

    assert (await run_workflow(retries)).get() == "done"
    assert overlaps == [False, False]


async def test_a_result_that_does_not_fit_its_annotation_wins_no_race() -> None:
    async def odd() -> int:
        return "no number"  # type: ignore[return-value]

    async def even() -> int:
        return 2

    @workflow
    async def races(run: Run) -> int:
        return int(await run.race(run.step(odd), run.step(even)))

    assert (await run_workflow(races)).get() == 2


async def test_a_called_value_that_does_not_fit_the_wanted_type_wins_no_race() -> None:
    @workflow
    async def races(run: Run) -> int:
        return int(await run.race(run.call("odd", into=int), run.call("even", into=int)))

    run = await run_workflow(races, skills={"odd": "no number", "even": 2}, crash_at_every_step=True)
    assert run.get() == 2
    errors = [event.facts.get("error", {}).get("type") for event in run.events if event.step == "odd"]
    assert "output_validation_error" in errors


def add(number: float, other: float = 1) -> float:
    return number + other


WRONG_STEPS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda run: run.sleep(nan), "run.sleep: seconds is nan"),
    (lambda run: run.sleep(days=-1), "run.sleep: days is -1"),
    (lambda run: run.call(5), "run.call: skill is 5, and not a text"),
    (lambda run: run.call("s", timeout_s="5"), "run.call: timeout_s is '5'"),
    (lambda run: run.call("s", ratio=nan), "ratio is nan, which is not JSON"),
    (lambda run: run.call("s", [1]), "the arguments of s are a list"),
    (lambda run: run.call("s", what=object()), "argument what of s is no JSON value"),
    (lambda run: run.step(add, nan), "argument 1 of run.step(add): nan, which is not JSON"),
    (lambda run: run.step("add", 1), "run.step: str is no function"),
    (lambda run: run.elicit(5, bool), "run.elicit: message is 5"),
    (lambda run: run.log(5), "run.log: message is 5"),
    (lambda run: run.workflow("other", 5), "the arguments of other are a int"),
]


@pytest.mark.parametrize(("make", "message"), WRONG_STEPS, ids=[message for _, message in WRONG_STEPS])
async def test_a_wrong_argument_of_a_step_is_named_with_the_line_of_the_author(
    make: Callable[[Any], Any], message: str
) -> None:
    @workflow
    async def flow(run: Run) -> None:
        await make(run)

    outcome = await run_workflow(flow, skills={"s": 1})
    with pytest.raises(ExecutionFailedError) as failed:
        outcome.get()
    assert message in failed.value.message
    assert "test_faults_of_bodies.py:" in failed.value.message
    assert "Traceback" not in failed.value.message


async def test_a_body_that_raises_generator_exit_fails_and_undoes_its_steps() -> None:
    undone: list[str] = []
    agent = Agent("shop", version="1.0.0")

    @agent.skill
    async def give_back() -> str:
        """Undoes."""
        undone.append("yes")
        return "done"

    @workflow
    async def fails(run: Run) -> str:
        run.undo("give_back", {})
        raise GeneratorExit("at once")

    fault = (await run_workflow(fails, agents=[agent])).record.fault
    assert fault is not None
    assert "GeneratorExit" in str(fault)
    assert undone == ["yes"]


async def test_arguments_that_hold_themselves_and_classes_are_refused_or_taken_in_finite_time() -> None:
    @dataclass
    class Node:
        child: Node | None = None

    circle: dict[str, Any] = {"list": []}
    circle["list"].append(circle)
    with pytest.raises(InvalidParametersError, match="argument node of plant is no JSON value"):
        arguments_as_json("plant", {"node": circle})
    node = Node()
    node.child = node
    assert find_nonfinite([node, Node, {"a": [1.5, None]}]) is None
    shared = [nan]
    problem = find_nonfinite({"a": [shared, shared]})
    assert problem is not None
    assert problem.path == "a.1.0"
