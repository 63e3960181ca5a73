"""Steps with ``ask``: only agents that say that they can do it now are called."""

from __future__ import annotations

import pytest

from retinue.core.errors import AgentUnreachableError, StepFailedError
from retinue.mesh.asking.query import Can
from tests.requirements import requirement
from tests.workflows.running import Bench, failing

pytestmark = requirement("W-18")


def offer_three(bench: Bench) -> None:
    for place, name in enumerate("abc"):
        bench.offer("execute", name, agent=name, roles=["execute"], score=0.9 - place / 10)
    bench.caller.answer_asked("b", False)


def workflow(step: str) -> str:
    return f"name: w\nsteps:\n  - {{id: d, {step}}}\n"


@pytest.mark.parametrize("step", ["skill: execute, ask: true", "role: execute, prompt: x, ask: true"])
async def test_a_step_calls_the_best_agent_that_says_yes(bench: Bench, step: str) -> None:
    offer_three(bench)
    bench.caller.answer_asked("a", Can(confidence=0.3))
    bench.caller.answer_asked("c", Can(confidence=0.8))
    assert (await bench.run(workflow(step))).get() == "c"
    assert sorted(bench.caller.asked) == ["a", "b", "c"]


async def test_among_equal_answers_the_order_of_the_choice_holds(bench: Bench) -> None:
    offer_three(bench)
    assert (await bench.run(workflow("role: execute, prompt: x, ask: true"))).get() == "a"


@pytest.mark.parametrize("mode", ["all", "vote"])
async def test_parallel_modes_run_among_those_that_said_yes(bench: Bench, mode: str) -> None:
    offer_three(bench)
    parallel = f"parallel: {{mode: {mode}, role: execute, prompt: x}}, ask: true"
    await bench.run(workflow(parallel))
    assert sorted(call.agent for call in bench.caller.calls) == ["a", "c"]


async def test_a_race_and_a_merge_have_no_other_agents(bench: Bench) -> None:
    offer_three(bench)
    bench.caller.answer_asked("a", False)
    for mode in ("race", "merge"):
        step = f"parallel: {{mode: {mode}, role: execute, prompt: x}}, ask: true"
        assert (await bench.run(workflow(step))).get() == "c"


async def test_nobody_that_says_yes_fails_the_step_and_tells_what_was_said(bench: Bench) -> None:
    offer_three(bench)
    bench.caller.answer_asked("a", False)
    bench.caller.break_connection("c")
    for step in ("skill: execute, ask: true", "parallel: {role: execute, prompt: x}, ask: true"):
        with pytest.raises(StepFailedError, match="no agent said that it can do execute now") as caught:
            (await bench.run(workflow(step))).get()
        assert "a said no; b said no; c: " in caught.value.message
        assert caught.value.cause["type"] == "nobody_willing"
    assert bench.caller.calls == []


async def test_a_named_agent_is_asked_too(bench: Bench) -> None:
    offer_three(bench)
    assert (await bench.run(workflow("skill: execute, agent: c, ask: true"))).get() == "c"
    with pytest.raises(StepFailedError, match="b said no"):
        (await bench.run(workflow("skill: execute, agent: b, ask: true"))).get()


async def test_an_agent_that_is_gone_after_its_yes_is_replaced_by_another_that_says_yes(
    bench: Bench,
) -> None:
    offer_three(bench)
    bench.caller.answer_asked("a", True, False)
    gone = AgentUnreachableError("a", "http://a", "connection refused")
    bench.offer("execute", failing(gone), agent="a", roles=["execute"], score=0.9)
    assert (await bench.run(workflow("skill: execute, ask: {timeout: 1s}"))).get() == "c"
    assert sorted(bench.caller.asked) == ["a", "a", "b", "b", "c", "c"]


async def test_without_ask_nobody_is_asked(bench: Bench) -> None:
    offer_three(bench)
    assert (await bench.run(workflow("skill: execute, ask: false"))).get() == "a"
    assert bench.caller.asked == []
