"""Several calls of one body in flight: every implementation of RunContext passes it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from retinue.core.errors import BusyError, NondeterminismError
from retinue.workflows.runs.ports import Mark, RunContext, StepCall
from retinue.workflows.runs.records import RunRequest
from tests.workflows.implementations import Open
from tests.workflows.runs.effects import ask, gives, raises, started, until, waits_for_ever


def call(path: str, effect: Any, **more: Any) -> StepCall:
    return StepCall(path, effect, timeout_s=30, **more)


async def test_effects_run_at_once_and_their_outcomes_keep_the_given_order(open_runs: Open) -> None:
    turns = [asyncio.Event() for _ in range(3)]

    def ends_after(number: int) -> Any:
        """Each effect waits for the one after it, so that they end in the reverse order."""

        async def effect() -> Any:
            if number < 2:
                await turns[number + 1].wait()
            turns[number].set()
            return number

        return effect

    async def body(context: RunContext, request: RunRequest) -> Any:
        outcomes = await context.together([call(f"s-{n}", ends_after(n)) for n in range(3)])
        last = await context.step("last", gives("last"), timeout_s=5)
        return [*(outcome.value for outcome in outcomes), last.value]

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        assert (await runs.finish("r")).get() == [0, 1, 2, "last"]
        steps = await runs.list_steps("r")
        assert [step.step for step in steps] == ["s-0", "s-1", "s-2", "last"]
        finished = [event.step for event in await runs.list_events("r") if event.kind == "step_finished"]
        assert sorted(finished[:3]) == ["s-0", "s-1", "s-2"]
        assert finished[3:] == ["last"]


async def test_at_most_the_limit_of_effects_run_at_once(open_runs: Open) -> None:
    running, most = 0, 0

    async def effect() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1

    async def body(context: RunContext, request: RunRequest) -> Any:
        calls = [call(f"s-{n}", effect) for n in range(7)]
        return len(await context.together(calls, limit=2))

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        assert (await runs.finish("r")).get() == 7
    assert most == 2


async def test_a_failure_is_an_outcome_and_the_other_effects_go_on(open_runs: Open) -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        calls = [call("a", raises(BusyError("full", 1))), call("b", gives(2))]
        late = StepCall("c", waits_for_ever, timeout_s=0.01)
        failed, done, cut = await context.together([*calls, late])
        return [failed.fault and failed.fault.type, done.value, cut.fault and cut.fault.type]

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        assert (await runs.finish("r")).get() == ["busy", 2, "timeout"]


async def test_no_calls_at_all_give_no_outcomes(open_runs: Open) -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        return [len(await context.together([])), (await context.step("a", gives(1), timeout_s=5)).value]

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        assert (await runs.finish("r")).get() == [0, 1]


async def test_a_resumed_run_repeats_only_the_effects_that_had_not_ended(open_runs: Open) -> None:
    begun: Counter[str] = Counter()
    resumed = asyncio.Event()

    def counted(name: str, *, hangs: bool) -> Any:
        async def effect() -> Any:
            begun[name] += 1
            if hangs and not resumed.is_set():
                await asyncio.Event().wait()
            return f"{name} {begun[name]}"

        return effect

    async def body(context: RunContext, request: RunRequest) -> Any:
        first = await context.step("first", counted("first", hangs=False), timeout_s=30)
        calls = [call(name, counted(name, hangs=name in "ac")) for name in "abcd"]
        outcomes = await context.together(calls)
        last = await context.step("last", counted("last", hangs=False), timeout_s=30)
        return [first.value, *(outcome.value for outcome in outcomes), last.value]

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        ended = set[str]()
        async with asyncio.timeout(30):
            async for event in runs.follow("r"):
                if event.kind == "step_finished":
                    ended.add(event.step)
                if ended >= {"b", "d"} and begun["a"] and begun["c"]:
                    break
        assert (await runs.cancel("r")).status == "cancelled"
        resumed.set()
        await runs.resume("r")
        record = await runs.finish("r")
        assert record.get() == ["first 1", "a 2", "b 1", "c 2", "d 1", "last 1"]
        assert [step.step for step in await runs.list_steps("r")] == ["first", *"abcd", "last"]


async def test_a_fork_keeps_what_was_recorded_before_its_step(open_runs: Open) -> None:
    begun: Counter[str] = Counter()

    def counted(name: str) -> Any:
        async def effect() -> Any:
            begun[name] += 1
            return begun[name]

        return effect

    async def body(context: RunContext, request: RunRequest) -> Any:
        outcomes = await context.together([call(name, counted(name)) for name in "abc"])
        return [outcome.value for outcome in outcomes]

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        assert (await runs.finish("r")).get() == [1, 1, 1]
        await runs.fork("r", from_step="b", new_run_id="again")
        assert (await runs.finish("again")).get() == [1, 2, 2]


async def test_a_path_that_is_used_twice_fails_the_run(open_runs: Open) -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        await context.together([call("a", gives(1)), call("a", gives(2))])

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        record = await runs.finish("r")
        assert record.fault is not None
        assert (record.fault.type, record.fault.message) == (
            "durable_rule",
            "path 'a' is used twice in run r",
        )


async def test_a_call_beside_those_in_flight_fails_the_run(open_runs: Open) -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        async def nested() -> Any:
            return (await context.step("b", gives(1), timeout_s=5)).value

        await context.together([call("a", nested)])

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        record = await runs.finish("r")
        assert record.fault is not None
        assert record.fault.type == "durable_rule"


async def test_a_cancelled_run_cuts_off_all_its_effects(open_runs: Open) -> None:
    cut: list[str] = []

    def hangs(name: str) -> Any:
        async def effect() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cut.append(name)

        return effect

    async def body(context: RunContext, request: RunRequest) -> Any:
        await context.together([call(name, hangs(name)) for name in "ab"])

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        await until(runs, "r", started("b"))
        assert (await runs.cancel("r")).status == "cancelled"
        assert sorted(cut) == ["a", "b"]


async def test_a_recorded_call_with_another_mark_fails_the_run_and_names_both_places(
    open_runs: Open,
) -> None:
    """On resumption the body asks for the same step with other arguments, or for another step."""
    places = {"arguments": ("a", "digest-2"), "name": ("b", "digest-1")}
    message = {
        "arguments": "on replay flow.py:9 asks for step 'a' with other arguments than those recorded "
        "from flow.py:7",
        "name": "on replay flow.py:9 asks for step 'b' where step 'a' was recorded from flow.py:7",
    }
    for kind, (path, digest) in places.items():
        resumed = asyncio.Event()

        async def body(
            context: RunContext,
            request: RunRequest,
            resumed: asyncio.Event = resumed,
            path: str = path,
            digest: str = digest,
        ) -> Any:
            if resumed.is_set():
                await context.step(path, gives(1), timeout_s=5, mark=Mark(digest, "flow.py:9"))
            else:
                await context.step("a", gives(1), timeout_s=5, mark=Mark("digest-1", "flow.py:7"))
            await context.step("hangs", waits_for_ever, timeout_s=60)

        async with open_runs(body) as runs:
            await runs.start(ask(), run_id="r")
            await until(runs, "r", started("hangs"))
            await runs.cancel("r")
            resumed.set()
            await runs.resume("r")
            record = await runs.finish("r")
            assert record.fault is not None, kind
            assert (record.fault.type, record.fault.message) == ("nondeterminism", message[kind])
            with pytest.raises(NondeterminismError) as raised:
                record.get()
            assert (raised.value.place, raised.value.recorded_place) == ("flow.py:9", "flow.py:7")


async def test_a_mark_is_checked_for_each_call_that_was_made_together(open_runs: Open) -> None:
    digests = ["1", "1"]

    async def body(context: RunContext, request: RunRequest) -> Any:
        calls = [call(f"s-{n}", gives(n), mark=Mark(digest, f"f:{n}")) for n, digest in enumerate(digests)]
        await context.together(calls)
        await context.step("hangs", waits_for_ever, timeout_s=60)

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        await until(runs, "r", started("hangs"))
        await runs.cancel("r")
        digests[1] = "2"
        await runs.resume("r")
        record = await runs.finish("r")
        assert record.fault is not None
        assert "step 's-1' with other arguments than those recorded from f:1" in record.fault.message


async def test_the_others_are_cut_off_once_enough_have_succeeded(open_runs: Open) -> None:
    cut: list[str] = []

    def hangs(name: str) -> Any:
        async def effect() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cut.append(name)

        return effect

    have_ended = asyncio.Event(), asyncio.Event()

    async def fails() -> None:
        have_ended[0].set()
        raise BusyError("full", 1)

    async def chooses() -> str:
        have_ended[1].set()
        return "no result"

    async def wins() -> str:
        for event in have_ended:
            await event.wait()
        return "c"

    async def body(context: RunContext, request: RunRequest) -> Any:
        calls = [
            call("a", hangs("a")),
            call("b", fails),
            call("c", wins),
            call("d", hangs("d")),
            call("chosen", chooses, decides=False),
        ]
        outcomes = await context.together(calls, enough=1)
        after = await context.step("after", gives("after"), timeout_s=5)
        kinds = [outcome.value if outcome.fault is None else outcome.fault.type for outcome in outcomes]
        return [*kinds, after.value]

    expected = ["cancelled", "busy", "c", "cancelled", "no result", "after"]
    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        assert (await runs.finish("r")).get() == expected
        assert sorted(cut) in (["a", "d"], ["a"], ["d"], [])  # one that had not begun is not begun
        steps = await runs.list_steps("r")
        assert [step.step for step in steps] == ["a", "b", "c", "d", "chosen", "after"]


async def test_a_recorded_success_cuts_off_what_a_resumed_run_repeats(open_runs: Open) -> None:
    begun: Counter[str] = Counter()

    async def hangs() -> None:
        begun["a"] += 1
        await asyncio.Event().wait()

    async def fails_to_record() -> str:
        begun["b"] += 1
        return "b"

    async def body(context: RunContext, request: RunRequest) -> Any:
        enough = None if begun["a"] == 0 else 1  # the first execution is stopped before the race is decided
        outcomes = await context.together([call("a", hangs), call("b", fails_to_record)], enough=enough)
        return [outcome.fault.type if outcome.fault else outcome.value for outcome in outcomes]

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        await until(runs, "r", lambda event: event.kind == "step_finished" and event.step == "b")
        await until(runs, "r", started("a"))
        await runs.cancel("r")
        await runs.resume("r")
        assert (await runs.finish("r")).get() == ["cancelled", "b"]
    assert begun["b"] == 1
    assert begun["a"] in (1, 2)


async def test_a_run_that_is_cancelled_in_a_race_goes_on_with_it(open_runs: Open) -> None:
    hold = asyncio.Event()

    async def effect() -> str:
        await hold.wait()
        return "won"

    async def body(context: RunContext, request: RunRequest) -> Any:
        calls = [call("a", effect), call("b", waits_for_ever)]
        return [one.value for one in await context.together(calls, enough=1)]

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        await until(runs, "r", started("b"))
        assert (await runs.cancel("r")).status == "cancelled"
        hold.set()
        await runs.resume("r")
        assert (await runs.finish("r")).get() == ["won", None]
