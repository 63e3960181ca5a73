"""Time: the limit of a step around others, that of the whole run, and waiting for a signal."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retinue.core.errors import (
    BusyError,
    CallTimedOutError,
    RemoteFaultError,
    RetinueError,
    StepFailedError,
    UnknownRunError,
)
from retinue.testing.memory_runs import MemoryRuns
from retinue.workflows.definitions.loading import load_definition
from retinue.workflows.interpreter.frame import Tools
from retinue.workflows.interpreter.step_loop import Interpreter
from retinue.workflows.orchestrator import Orchestrator
from retinue.workflows.runs.replay_rules import nobody_answered
from tests.workflows.running import Bench, failing


async def hang(given: Any) -> Any:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    "around",
    [
        "{id: o, loop: {max: 2}, timeout: 50ms, steps: [%s]}",
        "{id: o, foreach: {in: [1, 2]}, timeout: 50ms, steps: [%s]}",
        "{id: o, parallel: {}, timeout: 50ms, steps: [%s]}",
        "{id: o, switch: '1', timeout: 50ms, branches: {default: [%s]}}",
    ],
)
async def test_a_step_around_others_is_over_when_its_time_is(bench: Bench, around: str) -> None:
    bench.offer("slow", hang)
    bench.offer("tell", {"n": 1})
    inner = "{id: i, skill: slow, on_error: continue}, {id: j, skill: tell}"
    if "parallel" in around:
        inner = "{id: i, skill: slow, on_error: continue}"
    text = f"name: w\nsteps:\n- {around % inner}\n- {{id: after, skill: tell}}\n"
    with pytest.raises(StepFailedError, match=r"did not answer within 0.05 s \(workflow\)") as caught:
        (await bench.run(text)).get()
    assert caught.value.cause["type"] == "timeout"
    assert caught.value.remedy == "raise timeout of step o"
    assert bench.called == ["slow"] * len(bench.called)
    handled = await bench.run(text.replace("50ms,", "50ms, on_error: continue,"))
    assert handled.get() == {"n": 1}


@pytest.mark.parametrize(
    "noticed",
    [
        CallTimedOutError("slow", 0.5, layer="caller", setting="the caller's timeout"),
        RemoteFaultError("agent", -32000, "over", {"type": "timeout", "layer": "caller"}),
    ],
)
async def test_the_time_of_a_call_is_that_of_its_step_whoever_notices_first(
    bench: Bench, noticed: RetinueError
) -> None:
    bench.offer("slow", failing(noticed))
    with pytest.raises(StepFailedError) as caught:
        (await bench.run("name: w\nsteps: [{id: a, skill: slow, timeout: 500ms}]")).get()
    assert caught.value.cause["message"] == "step a did not answer within 0.5 s (workflow step)"
    assert caught.value.remedy == "raise timeout of step a"


SKILL_LIMIT = CallTimedOutError("slow", 2, layer="skill slow", setting="timeout_s of the skill")
LIMITED_RUN = "name: w\nsettings: {max_duration: 1m}\nsteps:\n"


async def test_a_shorter_limit_of_the_skill_is_not_taken_for_that_of_the_run(bench: Bench) -> None:
    bench.offer("slow", failing(*[SKILL_LIMIT] * 3))
    bench.offer("tell", {"n": 1})
    with pytest.raises(StepFailedError) as caught:
        (await bench.run(f"{LIMITED_RUN}- {{id: a, skill: slow, timeout: 2m}}")).get()
    assert caught.value.cause["message"] == "slow did not answer within 2 s (skill slow)"
    assert caught.value.remedy == "raise timeout_s of the skill"
    step = "- {id: a, skill: slow, timeout: 2m, retry: {attempts: 2, delay: 1ms}, on_error: continue}"
    assert (await bench.run(f"{LIMITED_RUN}{step}\n- {{id: b, skill: tell}}")).get() == {"n": 1}
    assert bench.called == ["slow", "slow", "slow", "tell"]


@pytest.mark.parametrize("steps", ["- {id: a, skill: slow, on_error: continue}", "- {id: a, wait_for: word}"])
async def test_a_run_is_over_when_its_time_is_whatever_its_steps_say(bench: Bench, steps: str) -> None:
    bench.offer("slow", hang)
    record = await bench.run(f"name: w\nsettings: {{max_duration: 50ms}}\nsteps:\n{steps}\n")
    with pytest.raises(StepFailedError) as caught:
        record.get()
    assert caught.value.remedy == "raise settings.max_duration"


async def test_the_time_is_what_was_recorded_and_not_what_it_is_after_a_stop(bench: Bench) -> None:
    """A resumed body must read the same clock, or it would walk another way."""
    now = 1000.0
    reached = asyncio.Event()

    async def wait_once(given: Any) -> Any:
        if not reached.is_set():
            reached.set()
            await asyncio.Event().wait()
        return {"n": 1}

    bench.offer("tell", {"n": 1})
    bench.offer("once", wait_once)
    runs = MemoryRuns(Interpreter(Tools(bench.caller, clock=lambda: now)).run)
    definition = load_definition(
        "name: w\nsettings: {max_duration: 10s}\n"
        "steps: [{id: a, skill: tell}, {id: b, skill: once}, {id: c, skill: tell}]"
    )
    await Orchestrator(runs).start(definition, {}, run_id="r")
    async with asyncio.timeout(60):
        await reached.wait()
        await runs.cancel("r")
        now = 1009.0
        await runs.resume("r")
        assert (await runs.finish("r")).get() == {"n": 1}
        await runs.fork("r", from_step="c", new_run_id="f")
        now = 1011.0
        record = await runs.finish("f")
    await runs.aclose()
    assert record.status == "failed"


async def test_waiting_between_attempts_does_not_outlast_the_limit(bench: Bench) -> None:
    bench.offer("busy", failing(*[BusyError("full", 0)] * 9))
    step = "{id: a, skill: busy, retry: {attempts: 2, delay: 1h}}"
    await bench.run(f"name: w\nsettings: {{max_duration: 5s}}\nsteps: [{step}]")
    assert bench.slept
    assert max(bench.slept) <= 5


APPROVAL = """
name: w
steps:
  - id: approval
    wait_for:
      topic: approve
      message: "Deploy ${{ input.what }}?"
      schema: {type: object, properties: {ok: {type: boolean}}, required: [ok]}
      timeout: 1h
  - {id: go, skill: tell, when: steps.approval.output.ok, with: {n: 1}}
"""


async def start_waiting(bench: Bench, run_id: str = "r", text: str = APPROVAL) -> dict[str, Any]:
    bench.offer("tell", lambda given: given)
    await bench.orchestrator.start(load_definition(text), {"what": "it"}, run_id=run_id)
    async with asyncio.timeout(60):
        async for event in bench.runs.follow(run_id):
            if event.facts.get("kind") == "wait":
                return dict(event.facts)
    raise AssertionError("it does not wait")


@pytest.mark.parametrize(("ok", "given"), [(True, {"n": 1}), (False, {"ok": False})])
async def test_a_run_waits_for_a_person_and_goes_on_with_the_answer(
    bench: Bench, ok: bool, given: Any
) -> None:
    facts = await start_waiting(bench)
    assert (facts["topic"], facts["message"]) == ("approve", "Deploy it?")
    assert facts["schema"]["required"] == ["ok"]
    await bench.runs.signal("r", "other", {"ok": True})
    await bench.runs.signal("r", "approve", {"ok": ok})
    async with asyncio.timeout(60):
        assert (await bench.runs.finish("r")).get() == given


async def test_an_answer_that_does_not_fit_is_recorded_and_waited_past(bench: Bench) -> None:
    await start_waiting(bench)
    await bench.runs.signal("r", "approve", "yes!")
    await bench.runs.signal("r", "approve", {"ok": True})
    async with asyncio.timeout(60):
        assert (await bench.runs.finish("r")).get() == {"n": 1}
    refused = [e for e in await bench.events("r") if e.facts.get("kind") == "refused_signal"]
    assert refused[-1].facts["error"]["type"] == "validation_error"


async def test_nobody_answering_in_time_fails_the_step(bench: Bench) -> None:
    record = await bench.run(APPROVAL.replace("1h", "10ms"), {"what": "it"})
    with pytest.raises(StepFailedError, match="step approval failed") as caught:
        record.get()
    assert caught.value.cause["type"] == "timeout"


async def test_a_signal_to_nobody_is_said_so(bench: Bench) -> None:
    with pytest.raises(UnknownRunError):
        await bench.runs.signal("r", "approve", 1)


async def test_a_person_who_did_not_answer_is_told_so_in_units_of_people(bench: Bench) -> None:
    record = await bench.run(
        "name: w\nsteps: [{id: approve, wait_for: {topic: ok, timeout: 50ms}}]", run_id="r"
    )
    with pytest.raises(
        StepFailedError, match=r"nobody answered step approve within 0.05 s \(signal ok\)"
    ) as caught:
        record.get()
    assert caught.value.cause["type"] == "timeout"
    assert caught.value.remedy == "raise wait_for.timeout of step approve"
    assert str(nobody_answered("approve", "ok", 28_800)).startswith("nobody answered step approve within 8 h")
