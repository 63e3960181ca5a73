"""The limits of a step think: the last answer, the error, and going on with more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retinue import Agent, Answer, LimitedError
from retinue.core.allowance import Allowance
from retinue.core.errors import BudgetSpentError
from retinue.testing import WorkflowRun, run_workflow
from retinue.workflows.definitions.loading import load_definition
from retinue.workflows.runs.records import Extension, Origin
from tests.support.thinking import ScriptedModel, say, think, use
from tests.workflows.running import Bench
from tests.workflows.think.scripts import add_model

ANSWER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def make_counter() -> Agent:
    agent = Agent("counter", version="1.0.0")

    @agent.skill
    async def count(number: int) -> int:
        """Counts."""
        return number

    return agent


COUNT = [use(("counter__count", {"number": n}), text=f"counted {n}") for n in range(50)]


async def run_limited(model: ScriptedModel, **options: Any) -> WorkflowRun:
    options = {"tools": ["count"], **options}
    return await run_workflow(think(**options), agents=[model.agent, make_counter()])


async def test_at_the_limit_of_turns_the_model_is_asked_once_more_without_calls() -> None:
    model = ScriptedModel(*COUNT)
    run = await run_limited(model, limits={"turns": 3})
    assert [request.tool_choice for request in model.requests] == ["auto", "auto", "auto", "none"]
    assert model.requests[-1].tools == model.requests[0].tools
    assert model.requests[-1].messages[: len(model.requests[0].messages)] == model.requests[0].messages
    assert "the limit of turns is reached" in str(model.requests[-1].messages[-1].to_json())
    with pytest.raises(LimitedError) as limited:
        run.get()
    assert limited.value.limit == "turns"
    assert limited.value.value == 3
    assert limited.value.answer == "as far as I came"
    assert limited.value.spent["calls"] == 3
    assert limited.value.spent["tokens"] == 4 * 110
    assert run.record.shown_status == "limited"
    assert limited.value.remedy == f"go on with more: retinue resume {run.record.id} --limit turns=N"


async def test_calls_over_the_limit_are_not_made_and_each_has_a_result() -> None:
    model = ScriptedModel(use(*(("counter__count", {"number": n}) for n in range(5))))
    run = await run_limited(model, limits={"calls": 3})
    assert run.agents.count("counter") == 3
    assert [is_error for _, is_error in model.list_outcomes()] == [False] * 3 + [True] * 2
    assert run.record.limited is not None
    assert run.record.limited.limit == "calls"


async def test_a_model_that_answers_with_its_last_call_is_done() -> None:
    model = ScriptedModel(COUNT[0], say("done"))
    assert (await run_limited(model, limits={"calls": 1, "turns": 2})).get() == "done"


async def test_tokens_are_reserved_so_that_the_last_answer_fits_as_well() -> None:
    model = ScriptedModel(*COUNT, tokens=(2_000, 500))
    run = await run_limited(model, limits={"tokens": 20_000})
    assert run.record.limited is not None
    assert run.record.limited.limit == "tokens"
    assert run.record.limited.spent["tokens"] <= 20_000
    assert model.requests[-1].tool_choice == "none"
    assert all(request.max_tokens is not None and request.max_tokens >= 256 for request in model.requests)
    assert model.requests[-2].max_tokens < model.requests[0].max_tokens  # type: ignore[operator]


async def test_a_prompt_that_does_not_fit_into_the_tokens_is_not_sent() -> None:
    model = ScriptedModel(*COUNT)
    run = await run_limited(model, prompt="word " * 10_000, limits={"tokens": 5_000})
    assert model.requests == []
    assert run.record.limited is not None
    assert run.record.limited.answer == ""


async def test_money_ends_a_loop_before_the_request_that_could_cost_too_much() -> None:
    model = ScriptedModel(*COUNT, tokens=(900, 100), cost_usd=0.01)
    run = await run_limited(model, limits={"dollars": 0.1})
    assert run.record.limited is not None
    assert run.record.limited.limit == "dollars"
    assert 0.02 < run.record.limited.spent["dollars"] <= 0.1


async def test_what_a_tool_spends_on_models_counts_as_well() -> None:
    agent = Agent("writer", version="1.0.0")

    @agent.skill
    async def write(number: int) -> Answer:
        """Writes with a model of its own."""
        return Answer("text", usage={"input_tokens": 3_000, "output_tokens": 1_000})

    model = ScriptedModel(*(use(("writer__write", {"number": n})) for n in range(50)))
    run = await run_workflow(think(tools=["write"], limits={"tokens": 30_000}), agents=[model.agent, agent])
    assert run.record.limited is not None
    assert run.record.limited.limit == "tokens"
    assert 20_000 < run.record.limited.spent["tokens"] <= 30_000
    assert len(model.requests) < 9


async def test_a_loop_spends_no_more_than_its_chain_of_calls_has_left(bench: Bench) -> None:
    bench.offer("count", lambda arguments: arguments["number"], agent="counter")
    requests = add_model(bench, *COUNT)
    origin = Origin(allowance=Allowance.of(4_000))
    definition = load_definition(think(tools=["count"]))
    await bench.orchestrator.start(definition, {}, run_id="r", origin=origin)
    record = await bench.runs.finish("r")
    assert record.limited is not None
    assert record.limited.limit == "tokens"
    allowances = [call.origin.allowance for call in bench.caller.calls]
    assert all(one is not None and one.tokens is not None and one.tokens <= 4_000 for one in allowances)
    assert len(requests) < 9


async def test_a_limit_of_money_without_a_price_is_refused() -> None:
    model = ScriptedModel(*COUNT)
    run = await run_limited(model, limits={"dollars": 0.1})
    assert run.record.fault is not None
    cause = run.record.fault.data["cause"]
    assert cause["type"] == "invalid_setting"
    assert "price" in cause["message"]
    assert len(model.requests) == 1


async def test_the_time_of_requests_and_calls_ends_a_loop() -> None:
    agent = Agent("slow", version="1.0.0")

    @agent.skill
    async def wait(number: int) -> int:
        """Waits."""
        await asyncio.sleep(0.03)
        return number

    model = ScriptedModel(*(use(("slow__wait", {"number": n})) for n in range(50)))
    run = await run_workflow(
        think(tools=["wait"], limits={"time": "100ms", "turns": 50}), agents=[model.agent, agent]
    )
    assert run.record.limited is not None
    assert run.record.limited.limit == "time"
    assert run.record.limited.answer == "as far as I came"
    assert run.record.limited.spent["time_s"] >= 0.1


async def test_a_budget_that_the_model_agent_has_spent_is_a_limit() -> None:
    spent = BudgetSpentError.of_model("thinker", "it has no tokens left", "llm.thinker.budget.tokens")
    model = ScriptedModel(COUNT[0], spent)
    run = await run_limited(model)
    assert run.record.limited is not None
    assert run.record.limited.limit == "tokens"


async def test_the_last_answer_is_the_object_where_one_was_asked_for() -> None:
    model = ScriptedModel(*COUNT, last=say("", output={"n": 1}))
    run = await run_limited(model, limits={"turns": 1}, output=ANSWER)
    assert run.record.limited is not None
    assert run.record.limited.answer == {"n": 1}


async def test_a_run_goes_on_with_more_and_repeats_nothing(bench: Bench) -> None:
    bench.offer("count", lambda arguments: arguments["number"], agent="counter")
    requests = add_model(bench, *COUNT[:4], say("the end"))
    record = await bench.run(dict(think(tools=["count"], limits={"turns": 2})))
    assert record.shown_status == "limited"
    assert record.is_extendable
    called = len(bench.caller.calls)
    await bench.runs.extend(record.id, Extension("research", {"turns": 10}))
    ended = await bench.runs.finish(record.id)
    assert ended.get() == "the end"
    assert [call.skill for call in bench.caller.calls[called:]] == ["complete", "count"] * 2 + ["complete"]
    assert "The limit was raised" in str(requests[-1].messages)
    steps = [step.step for step in await bench.runs.list_steps(record.id)]
    assert len(steps) == len(set(steps))


async def test_a_run_may_reach_its_limit_again_and_go_on_again(bench: Bench) -> None:
    bench.offer("count", lambda arguments: arguments["number"], agent="counter")
    add_model(bench, *COUNT[:6], say("the end"))
    record = await bench.run(dict(think(tools=["count"], limits={"turns": 2})))
    await bench.runs.extend(record.id, Extension("research", {"turns": 4}))
    again = await bench.runs.finish(record.id)
    assert again.limited is not None
    assert again.limited.value == 4
    await bench.runs.extend(record.id, Extension("research", {"turns": 40}))
    assert (await bench.runs.finish(record.id)).get() == "the end"


async def test_a_limit_in_a_branch_cannot_be_raised_because_the_branch_is_a_run_of_its_own(
    bench: Bench,
) -> None:
    bench.offer("count", lambda arguments: arguments["number"], agent="counter")
    add_model(bench, *COUNT)
    step = think(tools=["count"], limits={"turns": 1})["steps"][0]
    flow = {"name": "w", "steps": [{"id": "each", "foreach": [1], "steps": [step]}]}
    record = await bench.run(flow)
    assert record.shown_status == "limited"
    assert not record.is_extendable


async def test_on_error_continue_lets_a_workflow_go_on_after_a_limit(bench: Bench) -> None:
    bench.offer("count", lambda arguments: arguments["number"], agent="counter")
    add_model(bench, *COUNT)
    flow = dict(think(tools=["count"], limits={"turns": 1}))
    flow["steps"] = [{**flow["steps"][0], "on_error": "continue"}]
    flow["output"] = "${{ steps.research.error.type }}"
    assert (await bench.run(flow)).get() == "limited"
