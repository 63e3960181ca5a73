"""Steps that think over the model agent that ships: its budget, its prices, its errors, many runs at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retinue import Agent, Context, InvalidSettingError, LimitedError, StepFailedError
from retinue.testing import ModelTurn, ScriptedModel, connect_agents, run_workflow
from retinue.thinking.completion import AssistantMessage
from retinue.thinking.prompt_size import estimate_conversation
from tests.requirements import requirement
from tests.support.thinking import think

PRICES = {"input": 3.0, "output": 15.0}


def make_words() -> Agent:
    agent = Agent("words", version="1.0.0")

    @agent.skill(read_only=True)
    async def count_words(text: str) -> int:
        """Counts the words of a text."""
        return len(text.split())

    @agent.skill(read_only=True)
    async def shout(text: str) -> str:
        """Says a text louder."""
        return text.upper()

    return agent


def call(name: str, text: str, **options: Any) -> ModelTurn:
    return ModelTurn(calls=[(name, {"text": text})], **options)


@pytest.mark.parametrize("crashes", [False, True])
async def test_requests_only_add_to_the_conversation_wherever_a_run_is_interrupted(crashes: bool) -> None:
    model = ScriptedModel(
        call("find_skills", "count the words"),
        ModelTurn(calls=[("find_skills", {"what": "count the words of a text"})]),
        ModelTurn("Counting.", calls=[("words__count_words", {"text": t}) for t in ("a b", "c d e")]),
        ModelTurn(calls=[("find_skills", {"what": "say it louder"})]),
        call("words__shout", "five"),
        ModelTurn("FIVE"),
    )
    run = await run_workflow(think(), agents=[model, make_words()], crash_at_every_step=crashes)
    assert run.get() == "FIVE"
    assert model.find_rewritten() == []
    assert len(model.requests) == 6
    assert [is_error for _, is_error in model.list_results()] == [True, False, False, False, False, False]


@requirement("T-05")
@pytest.mark.parametrize(
    "failure",
    [
        ModelTurn(error="busy", retry_after_s=0.01, times=2),
        ModelTurn(error="unavailable", times=2),
        ModelTurn("It is", stops=True, times=1),
        ModelTurn(error="malformed", times=1),
    ],
)
async def test_failures_in_mid_loop_repeat_the_request_and_no_call(failure: ModelTurn) -> None:
    answers: list[ModelTurn] = []

    def fail_at_first(request: Any) -> ModelTurn:
        answers.append(failure)
        return failure if len(answers) <= (failure.times or 0) else ModelTurn("It is 2")

    model = ScriptedModel(call("words__count_words", "a b"), fail_at_first)
    run = await run_workflow(think(tools=["count_words"]), agents=[model, make_words()])
    assert run.get() == "It is 2"
    assert run.agents.count("words") == 1
    assert model.requests[1] == model.requests[-1]


@requirement("T-06")
async def test_money_is_exact_and_never_more_than_the_limit() -> None:
    turns = [call("words__count_words", f"text {n}", tokens=(1_000, 100)) for n in range(50)]
    model = ScriptedModel(*turns, prices=PRICES, last=ModelTurn("so far", tokens=(1_000, 50)))
    run = await run_workflow(
        think(tools=["count_words"], limits={"dollars": 0.1, "turns": 50}), agents=[model, make_words()]
    )
    limited = run.record.limited
    assert limited is not None
    assert limited.limit == "dollars"
    assert limited.answer == "so far"
    turns_made = len(model.requests) - 1
    assert turns_made > 5
    exact = turns_made * (1_000 * 3 + 100 * 15) + 1_000 * 3 + 50 * 15
    assert limited.spent["dollars"] == pytest.approx(exact / 1e6)
    assert limited.spent["dollars"] <= 0.1


@requirement("T-06")
async def test_a_limit_of_money_is_refused_before_the_first_request_where_the_price_is_unknown() -> None:
    model = ScriptedModel(ModelTurn("never"))
    async with connect_agents(model) as mesh:
        run = await mesh.start(think(tools=[], limits={"dollars": 1}))
        with pytest.raises(StepFailedError) as refused:
            await run.result()
    assert refused.value.cause["type"] == InvalidSettingError.type
    assert "price" in refused.value.cause["message"]
    assert model.requests == []


@requirement("T-12")
async def test_a_model_that_asks_a_model_that_asks_a_third_spends_one_budget() -> None:
    """A asks B by a workflow, B asks C: each is refused what the chain has not left."""
    third = ScriptedModel(*(call("words__shout", f"c {n}") for n in range(50)), name="third")
    second = ScriptedModel(
        *(ModelTurn(calls=[("boss__ask_third", {"text": f"b {n}"})]) for n in range(50)),
        name="second",
    )
    first = ScriptedModel(
        *(ModelTurn(calls=[("boss__ask_second", {"text": f"a {n}"})]) for n in range(50)),
        name="first",
    )
    boss = Agent("boss", version="1.0.0")

    def add(name: str, tool: str) -> None:
        @boss.skill(f"ask_{name}")
        async def ask(text: str, ctx: Context) -> Any:
            """Asks another model."""
            flow = think(text, model=name, tools=[tool])
            return await ctx.call("orchestrate_workflow", {"workflow": flow, "input": {}})

    add("second", "ask_third")
    add("third", "shout")
    async with connect_agents(first, second, third, boss, make_words()) as mesh:
        run = await mesh.start(think(model="first", tools=["ask_second"], limits={"tokens": 40_000}))
        with pytest.raises(LimitedError) as limited:
            await run.result(timeout_s=30)
    models = (first, second, third)
    assert all(model.requests for model in models)
    prompts = sum(estimate_conversation(request) * 3 // 4 for model in models for request in model.requests)
    assert prompts < limited.value.spent["tokens"] <= 40_000


@requirement("T-06")
@pytest.mark.parametrize("tokens", [3_000, 6_000, 12_000, 25_000])
async def test_no_more_tokens_are_used_than_the_limit_whatever_the_tools_answer(tokens: int) -> None:
    agent = Agent("books", version="1.0.0")

    @agent.skill(read_only=True)
    async def read(page: int) -> str:
        """Reads a page."""
        return "word " * 900

    model = ScriptedModel(*(ModelTurn(calls=[("books__read", {"page": n})]) for n in range(50)))
    run = await run_workflow(think(tools=["read"], limits={"tokens": tokens}), agents=[model, agent])
    limited = run.record.limited
    assert limited is not None
    assert limited.limit == "tokens"
    assert 0 < limited.spent["tokens"] <= tokens


async def test_fifty_runs_think_at_once_over_one_model() -> None:
    model = ScriptedModel(
        call("words__count_words", "a b"),
        call("words__count_words", "a b c"),
        lambda request: ModelTurn(f"done {sum(isinstance(m, AssistantMessage) for m in request.messages)}"),
    )
    agents = [model, make_words()]
    runs = await asyncio.gather(
        *(run_workflow(think(f"Task {n}", tools=["count_words"]), agents=agents) for n in range(50))
    )
    assert [run.get() for run in runs] == ["done 2"] * 50
    assert model.find_rewritten() == []
