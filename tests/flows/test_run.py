"""Workflows in Python, executed in memory by `run_workflow`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from retinue import (
    BusyError,
    CallTimedOutError,
    ExecutionFailedError,
    InvalidParametersError,
    Run,
    workflow,
)
from retinue.core.errors import NondeterminismError, StepFailedError
from retinue.flows.steps import StepNames
from retinue.testing import in_turn, run_workflow
from tests.requirements import requirement


@dataclass
class Plan:
    module: str
    tests: int


@workflow
async def plans(run: Run, modules: list[str]) -> list[Plan]:
    made = await run.gather(
        *(run.call("create_plan", requirements=module, into=Plan) for module in modules), limit=2
    )
    assert all(isinstance(plan, Plan) for plan in made)
    return made


def create_plan(arguments: Any) -> Any:
    return {"module": arguments["requirements"], "tests": len(arguments["requirements"])}


async def test_calls_give_typed_values_and_steps_have_stable_names() -> None:
    run = await run_workflow(plans, {"modules": ["a", "bb", "ccc"]}, skills={"create_plan": create_plan})
    assert run.get() == [
        {"module": "a", "tests": 1},
        {"module": "bb", "tests": 2},
        {"module": "ccc", "tests": 3},
    ]
    names = [step.step for step in run.steps if "/" not in step.step]
    assert names == ["create_plan", "create_plan-2", "create_plan-3"]


@workflow
async def everything(run: Run, name: str) -> dict[str, Any]:
    begun = await run.now()
    plan = await run.call("create_plan", {"requirements": name}, name="plan")
    await run.sleep(hours=1)
    slept = await run.now()
    count = await run.step(measure, name)
    drawn = await run.random()
    approved = await run.elicit("Publish?", bool, timeout="8h")
    word = await run.receive("word", str)
    again = await run.elicit("Really?", bool)
    return {
        "plan": plan,
        "hours": (slept - begun).total_seconds() // 3600,
        "count": count,
        "drawn": 0 <= drawn <= 1,
        "answers": [approved, word, again],
    }


counted: list[str] = []


def measure(text: str) -> int:
    counted.append(text)
    return len(text)


SIGNALS = {"answer": True, "word": "go", "answer-2": False}
RESULT = {
    "plan": {"module": "abc", "tests": 3},
    "hours": 1.0,
    "count": 3,
    "drawn": True,
    "answers": [True, "go", False],
}


async def test_every_kind_of_step_runs_once_also_if_the_process_dies_after_each() -> None:
    for crashes in (False, True):
        counted.clear()
        run = await run_workflow(
            everything,
            {"name": "abc"},
            skills={"create_plan": create_plan},
            signals=SIGNALS,
            crash_at_every_step=crashes,
        )
        assert run.get() == RESULT
        assert run.calls == [("create_plan", {"requirements": "abc"})]
        assert counted == ["abc"]
        resumed = [event for event in run.events if event.kind == "run_resumed"]
        assert (len(resumed) > 8) is crashes
        waits = [e.facts for e in run.events if e.kind == "step_started" and e.facts["kind"] == "wait"]
        assert [wait["topic"] for wait in waits] == ["answer", "word", "answer-2"]
        assert waits[0]["schema"] == {"type": "boolean"}


async def test_a_gather_that_is_interrupted_after_each_round_repeats_nothing() -> None:
    run = await run_workflow(
        plans,
        {"modules": ["a", "b"]},
        skills={"create_plan": create_plan},
        crash_at_every_step=True,
    )
    assert run.status == "done", run.record.fault
    assert len(run.calls) == 2


async def test_a_function_that_makes_other_steps_when_it_is_resumed_fails_with_both_places() -> None:
    turn = 0

    @workflow
    async def unsteady(run: Run) -> int:
        nonlocal turn
        turn += 1
        first = await run.step(measure, f"turn {min(turn, 2)}")
        return first + await run.step(measure, "last")

    run = await run_workflow(unsteady, crash_at_every_step=True)
    fault = run.record.fault
    assert fault is not None
    assert fault.type == "nondeterminism"
    assert "test_run.py:" in fault.message
    with pytest.raises(NondeterminismError) as raised:
        run.get()
    assert raised.value.asked == raised.value.recorded == "step 'measure'"
    assert raised.value.place == raised.value.recorded_place == fault.data["place"]
    assert "step 'measure' with other arguments than those recorded from test_run.py:" in fault.message


async def test_the_error_of_a_call_has_its_class_and_may_be_handled() -> None:
    @workflow
    async def handles(run: Run) -> str:
        try:
            await run.call("busy")
        except BusyError as error:
            return f"busy for {error.retry_after_s:g} s"
        return "no error"

    run = await run_workflow(handles, skills={"busy": BusyError("full", 3)})
    assert run.get() == "busy for 3 s"


async def test_the_failure_of_a_call_that_is_not_handled_fails_the_run_and_names_the_step() -> None:
    @workflow
    async def fails(run: Run) -> None:
        await run.gather(run.call("good"), run.call("bad"), run.call("good"))

    run = await run_workflow(fails, skills={"good": 1, "bad": ExecutionFailedError("no")})
    with pytest.raises(StepFailedError, match=r"step bad \(agent scripted-agent\) failed: no") as caught:
        run.get()
    assert caught.value.step == "bad"


async def test_gather_gives_failures_as_values_where_that_is_asked_for() -> None:
    @workflow
    async def goes_on(run: Run) -> list[str]:
        found = await run.gather(
            run.call("bad", retry=2), run.call("good"), run.step(measure, "x"), return_exceptions=True
        )
        return [type(one).__name__ for one in found]

    run = await run_workflow(
        goes_on, skills={"good": 1, "bad": in_turn(BusyError("full", 0), ExecutionFailedError("no"))}
    )
    assert run.get() == ["ExecutionFailedError", "int", "int"]
    assert [skill for skill, _ in run.calls].count("bad") == 2


async def test_retries_and_time_limits_are_those_of_steps() -> None:
    attempts: list[int] = []

    async def flaky() -> int:
        attempts.append(1)
        if len(attempts) < 3:
            raise ValueError("not yet")
        return len(attempts)

    async def hangs() -> None:
        await asyncio.Event().wait()

    @workflow
    async def retries(run: Run) -> list[Any]:
        third = await run.options(name="stubborn", retry=3).step(flaky)
        second = await run.call("flaky", retry=2)
        try:
            await run.options(timeout_s=0.01).step(hangs)
        except CallTimedOutError:
            return [third, second, "cut off"]
        return []

    run = await run_workflow(retries, skills={"flaky": in_turn(BusyError("full", 0), "fine")})
    assert run.get() == [3, "fine", "cut off"]
    assert [step.step for step in run.steps][:3] == ["stubborn", "stubborn@2", "stubborn@3"]


async def test_an_error_of_the_authors_code_names_its_line() -> None:
    @workflow
    async def broken(run: Run) -> int:
        return {"a": 1}["b"]

    run = await run_workflow(broken)
    fault = run.record.fault
    assert fault is not None
    assert fault.type == "execution_error"
    line = broken.place.line + 2
    assert fault.message == f"test_run.py:{line}: KeyError: 'b'"


async def test_a_parameter_with_the_name_of_an_option_needs_the_mapping_and_the_error_says_so() -> None:
    from retinue import Agent

    agent = Agent("greeter")

    @agent.skill
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    @workflow
    async def wrong(run: Run) -> Any:
        return await run.call("greet", name="Ada")

    @workflow
    async def right(run: Run) -> Any:
        return await run.call("greet", {"name": "Ada"})

    run = await run_workflow(wrong, agents=[agent])
    assert run.record.fault is not None
    assert "name is an option of run.call" in run.record.fault.data["cause"]["remedy"]
    assert (await run_workflow(right, agents=[agent])).get() == "Hello, Ada!"


@pytest.mark.filterwarnings("ignore:asyncio.gather:UserWarning")
async def test_what_cannot_run_together_is_refused_with_the_remedy() -> None:
    @workflow
    async def gathers(run: Run) -> None:
        await run.gather(run.call("good"), run.sleep(1))  # type: ignore[arg-type]

    @workflow
    async def twice(run: Run) -> None:
        step = run.call("good")
        await step
        await step

    @workflow
    async def elsewhere(run: Run) -> None:
        await asyncio.gather(run.call("good"), run.call("good"))

    messages = []
    for refused in (gathers, twice, elsewhere):
        run = await run_workflow(refused, skills={"good": 1})
        assert run.record.fault is not None
        messages.append(run.record.fault.message)
    assert "run.gather: coroutine sleep is no step" in messages[0]
    assert "step good: it was awaited before" in messages[1]
    assert "a task other than the body's" in messages[2]


@requirement("P-31")
async def test_a_failed_run_undoes_what_was_registered_last_first() -> None:
    @workflow
    async def books(run: Run) -> None:
        for place in ("hotel", "flight"):
            booked = await run.call("book", {"place": place})
            undo = run.undo("cancel", {"booking": booked})
            if place == "flight":  # it takes effect without await, and with it
                await undo
        raise ValueError("no visa")

    run = await run_workflow(
        books, skills={"book": lambda given: f"b-{given['place']}", "cancel": None}, crash_at_every_step=True
    )
    assert [call for call in run.calls if call[0] == "cancel"] == [
        ("cancel", {"booking": "b-flight"}),
        ("cancel", {"booking": "b-hotel"}),
    ]
    fault = run.record.fault
    assert fault is not None
    assert fault.type == "step_failed"
    assert "ValueError: no visa" in fault.message
    assert [row["ok"] for row in fault.data["compensated"]] == [True, True]


async def test_the_input_is_checked_against_the_types_before_the_run() -> None:
    with pytest.raises(InvalidParametersError, match="modules"):
        await run_workflow(plans, {"modules": "textwrap"})


async def test_the_output_is_checked_against_the_return_type_and_a_wrong_one_undoes_the_run() -> None:
    @workflow
    async def counts(run: Run) -> int:
        run.undo("cancel", {"booking": "b"})
        count: int = await run.call("work")
        return count

    assert (await run_workflow(counts, skills={"work": 3})).get() == 3
    failed = await run_workflow(counts, skills={"work": "three", "cancel": None})
    with pytest.raises(StepFailedError, match="the value must be integer; it is a string"):
        failed.get()
    assert failed.calls[-1] == ("cancel", {"booking": "b"})


async def test_a_text_as_the_time_of_a_sleep_is_named_with_the_remedy() -> None:
    @workflow
    async def sleeps(run: Run, text: str) -> None:
        seconds: Any = text
        await run.sleep(seconds)

    failed = await run_workflow(sleeps, {"text": "5m"})
    with pytest.raises(ExecutionFailedError, match=r"test_run.py:\d+: .*'5m', and not a number of seconds"):
        failed.get()


CHILD = """
name: doubled
input: {type: object, properties: {n: {type: integer}}, required: [n]}
steps:
  - {id: one, skill: double, with: {n: "${{ input.n }}"}}
"""


async def test_a_stored_workflow_runs_as_a_child_run_whose_steps_are_below_it() -> None:
    @workflow
    async def parent(run: Run) -> list[Any]:
        first = await run.workflow("doubled", {"n": 2})
        second = await run.workflow("doubled", {"n": first}, name="again")
        try:
            await run.workflow("doubled", {"n": "no number"})
        except InvalidParametersError:
            return [first, second, "refused"]
        return []

    for crashes in (False, True):
        run = await run_workflow(
            parent,
            skills={"double": lambda given: given["n"] * 2},
            workflows={"doubled": CHILD},
            crash_at_every_step=crashes,
        )
        assert run.get() == [4, 8, "refused"]
        assert [arguments for _, arguments in run.calls] == [{"n": 2}, {"n": 4}]
        below = [step.step for step in run.steps if step.step.endswith("/one")]
        assert below == ["doubled/one", "again/one"]


async def test_the_failure_of_a_child_run_is_that_of_its_step() -> None:
    @workflow
    async def parent(run: Run) -> None:
        await run.workflow("doubled", {"n": 2})

    run = await run_workflow(
        parent, skills={"double": ExecutionFailedError("no")}, workflows={"doubled": CHILD}
    )
    with pytest.raises(StepFailedError, match=r"step doubled/one .* failed: no"):
        run.get()


async def test_a_race_gives_the_first_success_and_cuts_the_others_off() -> None:
    async def hangs() -> None:
        await asyncio.Event().wait()

    @workflow
    async def races(run: Run) -> list[Any]:
        won = await run.race(run.step(hangs), run.call("bad"), run.call("good"))
        try:
            await run.race(run.call("bad"), run.call("bad"))
        except ExecutionFailedError as error:
            return [won, error.message]
        return []

    for crashes in (False, True):
        run = await run_workflow(
            races, skills={"good": 1, "bad": ExecutionFailedError("no")}, crash_at_every_step=crashes
        )
        assert run.get() == [1, "no"]
        cancelled = [e.step for e in run.events if e.facts.get("error", {}).get("type") == "cancelled"]
        assert cancelled == ["hangs"]


async def test_a_call_of_a_gather_begins_while_an_own_function_of_it_still_runs() -> None:
    called = asyncio.Event()

    async def waits_for_the_call() -> str:
        await called.wait()
        return "heard"

    def answer(_: Any) -> str:
        called.set()
        return "said"

    @workflow
    async def talks(run: Run) -> list[str]:
        return await run.gather(run.step(waits_for_the_call), run.call("say"))

    assert (await run_workflow(talks, skills={"say": answer})).get() == ["heard", "said"]


async def test_a_gather_gives_the_values_of_the_steps_that_are_enough() -> None:
    started: list[int] = []

    async def give(n: int) -> int:
        started.append(n)
        if n in (1, 3):
            raise ValueError(f"{n} is odd")
        if n == 4:
            await asyncio.sleep(3600)
        return n

    @workflow
    async def some(run: Run) -> list[int]:
        return await run.gather(*(run.step(give, n) for n in range(5)), enough=2)

    run = await run_workflow(some, crash_at_every_step=True)
    assert run.get() == [0, 2]
    assert {0, 1, 2} <= set(started)


async def test_more_values_than_are_enough_are_those_of_the_first_steps() -> None:
    @workflow
    async def some(run: Run) -> list[str]:
        return await run.gather(run.call("one"), run.call("two"), run.call("three"), limit=1, enough=2)

    run = await run_workflow(some, skills={"one": "1", "two": "2", "three": "3"}, crash_at_every_step=True)
    assert run.get() == ["1", "2"]
    assert [skill for skill, _ in run.calls] == ["one", "two"]


async def test_a_gather_ends_when_enough_steps_cannot_succeed_any_more() -> None:
    @workflow
    async def some(run: Run) -> list[str]:
        return await run.gather(run.call("fails"), run.call("fails"), run.call("works"), enough=2)

    @workflow
    async def all_of_them(run: Run) -> list[str]:
        steps = (run.call("fails"), run.call("works"), run.call("hangs", timeout_s=60))
        results = await run.gather(*steps, enough=1, return_exceptions=True)
        return [result if isinstance(result, str) else type(result).__name__ for result in results]

    async def hang(arguments: Any) -> str:
        await asyncio.sleep(3600)
        return "never"

    skills = {"fails": RuntimeError("broken"), "works": "done", "hangs": hang}
    fault = (await run_workflow(some, skills=skills)).record.fault
    assert fault is not None
    assert fault.data["step"] == "fails"
    run = await run_workflow(all_of_them, skills=skills, crash_at_every_step=True)
    assert run.get() == ["ExecutionFailedError", "done", "CallCancelledError"]


@pytest.mark.parametrize("enough", [0, 3])
async def test_a_gather_refuses_a_number_that_its_steps_cannot_reach(enough: int) -> None:
    @workflow
    async def some(run: Run) -> list[str]:
        return await run.gather(run.call("one"), run.call("one"), enough=enough)

    @workflow
    async def none_of_none(run: Run) -> list[str]:
        return await run.gather(enough=1)

    fault = (await run_workflow(some, skills={"one": "1"})).record.fault
    assert fault is not None
    assert "enough of run.gather" in fault.message
    assert fault.remedy == "give 1 to 2, the number of steps"
    fault = (await run_workflow(none_of_none)).record.fault
    assert fault is not None
    assert "enough of run.gather" in fault.message


async def test_a_line_of_the_log_is_an_event_once_however_often_the_function_is_begun() -> None:
    @workflow
    async def tells(run: Run) -> None:
        await run.log("begins")
        for n in range(3):
            await run.step(measure, "x" * n)
            await run.log("measured", level="debug", data={"n": n})
        await run.log("x" * 5_000, level="warning", data={"much": "y" * 20_000})

    run = await run_workflow(tells, crash_at_every_step=True)
    assert run.status == "done"
    lines = [event.facts for event in run.events if event.kind == "log"]
    assert [line["message"][:8] for line in lines] == ["begins", *["measured"] * 3, "x" * 8]
    assert lines[2] == {"level": "debug", "message": "measured", "data": {"n": 1}}
    assert (len(lines[-1]["message"]), lines[-1]["data"]) == (4_000, {"omitted": "20,011 bytes"})
    steps = [event.step for event in run.events if event.kind == "step_finished"]
    assert steps == ["measure", "measure-2", "measure-3"]


async def test_a_line_of_the_log_from_a_step_breaks_the_rules() -> None:
    @workflow
    async def tells(run: Run) -> None:
        async def tell() -> None:
            await run.log("from a step")

        await run.gather(run.step(tell), run.step(tell))

    fault = (await run_workflow(tells)).record.fault
    assert fault is not None
    assert fault.type == "durable_rule"
    assert "a line of the log comes from a task other than the body's" in fault.message


def test_names_of_repeated_steps_are_numbered_and_never_meet() -> None:
    names = StepNames()
    taken = [names.take(wanted) for wanted in ("a", "a-2", "a", "a", "2 b", "a-2", "ü")]
    assert taken == ["a", "a-2", "a-3", "a-4", "_2_b", "a-2-2", "_"]
    assert names.peek("a") == names.take("a") == "a-5"
