"""The suite of the durability ports: every implementation of Runs and RunContext passes it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from retinue.core.errors import (
    BusyError,
    ExecutionFailedError,
    OutputInvalidError,
    RunConflictError,
    UnknownRunError,
    UnknownStepError,
)
from retinue.workflows.runs.ports import RunContext, StepCount
from retinue.workflows.runs.records import RunEvent, RunRequest, StepOutcome
from tests.workflows.implementations import Open
from tests.workflows.runs.effects import ask, counting, gives, raises, started, until, waits_for_ever


async def test_a_run_gives_the_value_of_its_body(open_runs: Open) -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        return {"id": context.run_id, "got": request.input}

    async with open_runs(body) as runs:
        await runs.start(ask([1, "two"]), run_id="r")
        record = await runs.finish("r")
        assert record.status == "done"
        assert record.get() == {"id": "r", "got": [1, "two"]}
        assert await runs.get("r") == record


@pytest.mark.parametrize(
    ("error", "type_", "retryable"),
    [
        (BusyError("full", 1), "busy", True),
        (ValueError("two\nlines"), "execution_error", True),
        (TimeoutError("Claude API timeout"), "execution_error", True),
        (asyncio.CancelledError(), "cancelled", False),
    ],
)
async def test_a_failing_effect_is_an_outcome_and_never_an_exception(
    open_runs: Open, error: BaseException, type_: str, retryable: bool
) -> None:
    seen: list[StepOutcome] = []

    async def body(context: RunContext, request: RunRequest) -> Any:
        seen.append(await context.step("a", raises(error), timeout_s=5))
        return "went on"

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        assert (await runs.finish("r")).get() == "went on"
    assert seen[0].fault is not None
    assert (seen[0].fault.type, seen[0].fault.retryable) == (type_, retryable)
    assert "\n" not in seen[0].fault.message


async def test_a_step_over_its_limit_is_cut_off(open_runs: Open) -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        outcome = await context.step("a", waits_for_ever, timeout_s=0.01)
        return outcome.fault and outcome.fault.type

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        assert (await runs.finish("r")).get() == "timeout"


async def test_what_crosses_a_step_is_copied(open_runs: Open) -> None:
    shared: dict[str, Any] = {"list": [1]}

    async def body(context: RunContext, request: RunRequest) -> Any:
        first = await context.step("a", gives(shared), timeout_s=5)
        shared["list"].append(2)
        first.value["list"].append(3)
        second = await context.step("b", gives(shared), timeout_s=5)
        return [first.value, second.value]

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        assert (await runs.finish("r")).get() == [{"list": [1, 3]}, {"list": [1, 2]}]


@pytest.mark.parametrize(
    "value", [object(), {1: 2}, float("inf"), 2**70, "\ud800", {"a": [float("nan"), None]}]
)
async def test_a_step_whose_value_is_no_json_fails(open_runs: Open, value: Any) -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        outcome = await context.step("a", gives(value), timeout_s=5)
        return outcome.fault and outcome.fault.type

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        assert (await runs.finish("r")).get() == OutputInvalidError.type


async def test_a_request_that_is_no_json_is_refused(open_runs: Open) -> None:
    async with open_runs(lambda context, request: asyncio.sleep(0)) as runs:
        with pytest.raises(OutputInvalidError):
            await runs.start(ask(float("nan")), run_id="r")


async def test_a_run_id_is_an_idempotency_key(open_runs: Open) -> None:
    ran = 0

    async def body(context: RunContext, request: RunRequest) -> Any:
        nonlocal ran
        ran += 1
        return request.input

    async with open_runs(body) as runs:
        await runs.start(ask({"a": 1, "b": 2}), run_id="r")
        await runs.finish("r")
        again = await runs.start(ask({"b": 2, "a": 1}), run_id="r")
        assert again.get() == {"a": 1, "b": 2}
        assert ran == 1
        with pytest.raises(RunConflictError):
            await runs.start(ask({"a": 1}), run_id="r")
        with pytest.raises(RunConflictError):
            await runs.start(ask({"a": 1, "b": 2}, other=True), run_id="r")


async def test_an_unknown_run_is_said_so(open_runs: Open) -> None:
    async with open_runs(lambda context, request: asyncio.sleep(0)) as runs:
        for ask_for in (runs.get, runs.finish, runs.cancel, runs.resume, runs.list_events):
            with pytest.raises(UnknownRunError):
                await ask_for("nobody")


async def test_a_body_that_raises_fails_its_run_and_nothing_else(open_runs: Open) -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        if request.input == "known":
            raise ExecutionFailedError("said so")
        raise ZeroDivisionError("oops")

    async with open_runs(body) as runs:
        await runs.start(ask("known"), run_id="a")
        await runs.start(ask("unknown"), run_id="b")
        with pytest.raises(ExecutionFailedError, match="said so"):
            (await runs.finish("a")).get()
        with pytest.raises(ExecutionFailedError, match="ZeroDivisionError: oops"):
            (await runs.finish("b")).get()


async def test_a_path_used_twice_fails_the_run(open_runs: Open) -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        await context.step("a", gives(1), timeout_s=5)
        await context.step("a", gives(2), timeout_s=5)

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        record = await runs.finish("r")
        assert record.fault is not None
        assert record.fault.type == "durable_rule"
        assert "'a' is used twice" in record.fault.message


async def test_steps_side_by_side_in_one_body_fail_the_run_even_if_the_body_hides_it(open_runs: Open) -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        await asyncio.gather(
            context.step("a", gives(1), timeout_s=5),
            context.step("b", gives(2), timeout_s=5),
            return_exceptions=True,
        )
        return "hidden"

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        record = await runs.finish("r")
        assert record.fault is not None
        assert "use child runs" in record.fault.message


async def test_a_run_cancelled_before_it_began_ends(open_runs: Open) -> None:
    async with open_runs(lambda context, request: waits_for_ever()) as runs:
        await runs.start(ask(), run_id="r")
        first, second = await asyncio.gather(runs.cancel("r"), runs.cancel("r"))
        assert first.status == second.status == "cancelled"


async def test_a_resumed_run_goes_on_where_it_stopped(open_runs: Open) -> None:
    ran: list[str] = []
    gate = asyncio.Event()

    async def body(context: RunContext, request: RunRequest) -> Any:
        async def note(name: str) -> Any:
            ran.append(name)
            if name == "b":
                await gate.wait()
            return name

        first = await context.step("a", lambda: note("a"), timeout_s=60)
        second = await context.step("b", lambda: note("b"), timeout_s=60)
        return [first.value, second.value]

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        await until(runs, "r", started("b"))
        await runs.cancel("r")
        gate.set()
        await runs.resume("r")
        assert (await runs.finish("r")).get() == ["a", "b"]
        assert sorted(ran) == ["a", "b", "b"]
        kinds = [event.kind async for event in runs.follow("r")]
        assert kinds.count("run_finished") == 2
        assert kinds[-1] == "run_finished"
        assert "run_resumed" in kinds
        assert (await runs.resume("r")).status == "done"


async def test_a_body_that_decides_otherwise_on_replay_fails_loudly(open_runs: Open) -> None:
    names = iter(["a", "z"])

    async def body(context: RunContext, request: RunRequest) -> Any:
        await context.step(next(names), gives(1), timeout_s=5)
        await context.step("b", waits_for_ever, timeout_s=60)

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        await until(runs, "r", started("b"))
        await runs.cancel("r")
        await runs.resume("r")
        record = await runs.finish("r")
        assert record.fault is not None
        assert "asks for step 'z' where step 'a' was recorded" in record.fault.message


async def test_a_fork_keeps_what_came_before_a_step(open_runs: Open) -> None:
    ran: list[str] = []

    async def body(context: RunContext, request: RunRequest) -> Any:
        async def note(name: str) -> Any:
            ran.append(name)
            return len(ran)

        return [
            (await context.step(name, partial(note, name), timeout_s=5)).value for name in ("a", "b", "c")
        ]

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        assert (await runs.finish("r")).get() == [1, 2, 3]
        fork = await runs.fork("r", from_step="b", new_run_id="f")
        assert fork.forked_from == "r"
        assert (await runs.finish("f")).get() == [1, 4, 5]
        assert ran == ["a", "b", "c", "b", "c"]
        with pytest.raises(UnknownStepError):
            await runs.fork("r", from_step="nothing", new_run_id="g")
        with pytest.raises(RunConflictError):
            await runs.fork("r", from_step="b", new_run_id="f")


async def test_a_signal_reaches_the_run_that_receives_whether_it_comes_before_or_after(
    open_runs: Open,
) -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        first = await context.receive("one", "topic", 5)
        second = await context.receive("two", "topic", 5)
        late = await context.receive("three", "topic", 0.01)
        return [first.value, second.value, late.fault and late.fault.type]

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        await runs.signal("r", "topic", {"yes": True})
        await runs.signal("r", "other", "not this")
        await asyncio.sleep(0)
        await runs.signal("r", "topic", 2)
        assert (await runs.finish("r")).get() == [{"yes": True}, 2, "timeout"]
        with pytest.raises(UnknownRunError):
            await runs.signal("nobody", "topic", 1)


async def test_events_can_be_followed_live_to_the_end(open_runs: Open) -> None:
    gate = asyncio.Event()

    async def body(context: RunContext, request: RunRequest) -> Any:
        async def wait() -> None:
            await gate.wait()

        await context.step("a", wait, timeout_s=5, facts={"agent": "x", "skill": "y"})

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        seen: list[RunEvent] = []
        async with asyncio.timeout(60):
            async for event in runs.follow("r"):
                seen.append(event)
                if event.kind == "step_started":
                    assert (await runs.get("r")).status == "running"
                    gate.set()
        assert [event.kind for event in seen] == [
            "run_started",
            "step_started",
            "step_finished",
            "run_finished",
        ]
        assert seen[2].facts["agent"] == "x"
        assert seen[2].facts["duration_ms"] >= 0
        assert list(await runs.list_events("r")) == seen
        assert [event async for event in runs.follow("r", after=2)] == seen[2:]
        assert [event async for event in runs.follow("r", after=4)] == []


async def test_a_run_may_be_followed_from_beyond_its_last_event(open_runs: Open) -> None:
    """A client may have the number of an event of another run, or of one that was lost with a disk."""
    gate = asyncio.Event()

    async def body(context: RunContext, request: RunRequest) -> Any:
        async def wait() -> None:
            await gate.wait()

        await context.step("a", wait, timeout_s=5)

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        await until(runs, "r", started("a"))

        async def follow() -> list[RunEvent]:
            return [event async for event in runs.follow("r", after=1_000)]

        following = asyncio.create_task(follow())
        await asyncio.sleep(0)
        gate.set()
        async with asyncio.timeout(60):
            assert await following == []


async def test_runs_are_listed_newest_first_and_by_status(open_runs: Open) -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        if request.input == "fails":
            raise ExecutionFailedError("no")

    async with open_runs(body) as runs:
        for name in ("one", "fails", "three"):
            await runs.start(ask(name), run_id=name)
            await runs.finish(name)
        assert [r.id for r in await runs.list_all()] == ["three", "fails", "one"]
        assert [r.id for r in await runs.list_all(status="failed")] == ["fails"]


async def test_what_nobody_has_received_yet_is_counted(open_runs: Open) -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        await context.receive("gate", "open", 5)
        return (await context.receive("ask", "topic", 5)).value

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        assert await runs.count_signals("r", "topic") == 0
        await runs.signal("r", "topic", 1)
        await runs.signal("r", "topic", 2)
        assert await runs.count_signals("r", "topic") == 2
        assert await runs.count_signals("r", "other") == 0
        await runs.signal("r", "open", True)
        assert (await runs.finish("r")).get() == 1
        assert await runs.count_signals("r", "topic") == 1
        with pytest.raises(UnknownRunError):
            await runs.count_signals("nobody", "topic")


async def test_receiving_is_seen_in_the_events_as_a_step_is(open_runs: Open) -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        outcome = await context.receive("ask", "topic", 5, facts={"kind": "wait", "topic": "topic"})
        return outcome.value

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        waiting = await until(runs, "r", started("ask"))
        assert waiting.facts["topic"] == "topic"
        await runs.signal("r", "topic", "now")
        assert (await runs.finish("r")).get() == "now"
        ended = [e for e in await runs.list_events("r") if e.kind == "step_finished"]
        assert [e.step for e in ended] == ["ask"]
        assert ended[0].facts["duration_ms"] >= 0


async def test_what_a_step_was_sent_is_told_once_and_is_a_copy(open_runs: Open) -> None:
    sent = {"list": [1]}

    async def body(context: RunContext, request: RunRequest) -> Any:
        await context.step("a", gives(1), timeout_s=5, facts={"kind": "call", "input": sent})
        sent["list"].append(2)

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        await runs.finish("r")
        first, second = [e.facts for e in await runs.list_events("r") if e.step == "a"]
        assert first["input"] == {"list": [1]}
        assert "input" not in second
        assert second["kind"] == "call"


async def test_a_forked_run_lists_the_outcomes_that_it_kept(open_runs: Open) -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        for path in ("a", "b"):
            await context.step(path, gives(path), timeout_s=5)

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        await runs.finish("r")
        await runs.fork("r", from_step="b", new_run_id="f")
        await runs.finish("f")
        assert [one.step for one in await runs.list_steps("f")] == ["a", "b"]
        assert [e.step for e in await runs.list_events("f") if e.kind == "step_finished"] == ["b"]


async def test_runs_are_listed_by_name_and_no_more_than_asked(open_runs: Open) -> None:
    async with open_runs(lambda context, request: asyncio.sleep(0)) as runs:
        for run_id in ("one", "two", "three"):
            await runs.start(RunRequest(name=run_id[0], definition={}, input=None), run_id=run_id)
            await runs.finish(run_id)
        assert [r.id for r in await runs.list_all(name="t")] == ["three", "two"]
        assert [r.id for r in await runs.list_all(limit=1)] == ["three"]
        assert await runs.list_all(name="x") == ()
        listed = await runs.list_all(limit=1, accept=lambda record: record.id != "three")
        assert [r.id for r in listed] == ["two"]


async def test_a_step_is_told_how_many_attempts_at_it_were_interrupted(open_runs: Open) -> None:
    """And the outcome that is counted is the recorded one, also when the body walks over it again."""
    told: list[int] = []
    closed: list[Any] = []
    reached = [asyncio.Event() for _ in range(3)]

    async def body(context: RunContext, request: RunRequest) -> Any:
        begin = StepCount(
            lambda outcome: replace(outcome, usage={"output_tokens": 7}), closed.append, told.append
        )
        first = await context.step("a", gives(1), timeout_s=5, count=begin)
        await context.step("b", hold, timeout_s=60, count=begin)
        context.record_usage(0, first.usage)

    async def hold() -> None:
        place = next(place for place, event in enumerate(reached) if not event.is_set())
        reached[place].set()
        if place < 2:
            await asyncio.Event().wait()

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        for event in reached[:2]:
            async with asyncio.timeout(60):
                await event.wait()
            await runs.cancel("r")
            await runs.resume("r")
        record = await runs.finish("r")
    assert told == [0, 0, 1, 2]
    assert [outcome.usage for outcome in closed] == [{"output_tokens": 7}] * 4, "three times a, and b at last"
    assert (record.calls, record.usage) == (0, {"output_tokens": 7})


async def test_what_effects_and_bodies_say_that_they_used_is_recorded_and_read_again(open_runs: Open) -> None:
    seen: list[Any] = []

    async def body(context: RunContext, request: RunRequest) -> Any:
        if request.input is not None:
            context.record_usage(request.input)
            raise BusyError("full", 1)
        first = await context.step("a", gives(1), timeout_s=5, count=counting(7))
        bad = await context.step("b", raises(BusyError("full", 1)), timeout_s=5, count=counting(8))
        child = await context.child("c", ask(5))
        (ended,) = await context.wait("c/wait", [child])
        context.record_usage(1)
        context.record_usage(9)
        seen.append((first.calls, bad.calls, ended.calls))
        await context.step("hold", waits_once, timeout_s=5, count=counting(1))

    reached = asyncio.Event()

    async def waits_once() -> None:
        if not reached.is_set():
            reached.set()
            await asyncio.Event().wait()

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        async with asyncio.timeout(60):
            await reached.wait()
            assert (await runs.cancel("r")).calls is None
            await runs.resume("r")
            assert (await runs.finish("r")).calls == 9
        assert seen == [(7, 8, 5)] * 2
        calls = {one.step: one.outcome.calls for one in await runs.list_steps("r")}
        assert calls == {"a": 7, "b": 8, "hold": None}, "of a try that was cut off nobody knows"
        assert [(r.id, r.calls) for r in await runs.list_all(children=True)] == [("r/c", 5), ("r", 9)]
        await runs.fork("r", from_step="hold", new_run_id="f")
        assert (await runs.finish("f")).calls == 9
        calls = {one.step: one.outcome.calls for one in await runs.list_steps("f")}
        assert calls["hold"] == 1


async def test_of_a_body_that_broke_a_rule_nobody_knows_what_it_used(open_runs: Open) -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        context.record_usage(3)
        await context.step("a", gives(1), timeout_s=5)
        await context.step("a", gives(1), timeout_s=5)

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        assert (await runs.finish("r")).calls is None


async def test_after_a_broken_rule_no_call_has_an_effect_and_an_endless_body_is_ended(
    open_runs: Open,
) -> None:
    effects: list[str] = []

    async def note() -> Any:
        effects.append("b")

    async def body(context: RunContext, request: RunRequest) -> Any:
        await context.step("a", gives(1), timeout_s=5)
        while True:
            try:
                await context.step("a", gives(2), timeout_s=5)
            except Exception:  # noqa: BLE001 - what an author may write
                with suppress(Exception):
                    await context.step("b", note, timeout_s=5)

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        record = await runs.finish("r")
    assert record.status == "failed"
    assert record.fault is not None
    assert record.fault.type == "durable_rule"
    assert not effects
