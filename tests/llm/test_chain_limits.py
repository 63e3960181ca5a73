"""A model agent in a chain of calls with a limit: what it reserves, what it counts, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from retinue.core.errors import BudgetSpentError, CallTimedOutError, InvalidSettingError, ModelError
from retinue.core.usage import amount_of
from retinue.testing import ScriptedModel, connect_agents
from retinue.testing.model_script import ModelTurn
from tests.requirements import requirement

PROMPT = {"prompt": "Think about it."}
SPENT = (40, 10)


def lost() -> ModelError:
    """The connection ended after the request was sent."""
    error = ModelError("scripted", "unavailable", "the connection was lost", retry_after_s=0.01)
    error.is_lost = True
    return error


async def ask(
    turns: Sequence[Any], budget: dict[str, float] | None, *, times: int = 1, **options: Any
) -> list[Any]:
    """The outcomes of requests to a model with these turns, one for each request in order."""
    left = list(turns)

    def turn(request: Any) -> Any:
        made = left.pop(0)
        return made if isinstance(made, Exception) else ModelTurn("Well.", tokens=made)

    options = {"max_tokens": 300, **options}
    model = ScriptedModel(turn, repeats=True, **options)
    async with connect_agents(model) as mesh:
        return [await mesh.ask("agent.ask", PROMPT, budget=budget) for _ in range(times)]


@requirement("S-14")
async def test_a_request_that_does_not_fit_is_refused_before_it_is_sent() -> None:
    (refused,) = await ask([], {"tokens": 300})
    assert isinstance(refused.error, BudgetSpentError)
    assert refused.status == "refused"
    assert refused.error.data["agent"] == "scripted"
    assert refused.error.message.startswith("Budget spent: this chain of calls has 300 tokens left, and the")
    assert refused.usage is None


async def test_the_answer_is_shortened_to_what_is_left() -> None:
    (done,) = await ask([(40, 9_000)], {"tokens": 900}, max_tokens=9_000)
    assert done.error is None
    assert amount_of(done.usage).tokens <= 900
    assert "the answer was cut" in done.warnings[0]


@pytest.mark.parametrize("prices", [None, {"input": 1.0, "output": 5.0}])
async def test_with_a_limit_of_money_a_model_needs_prices(prices: dict[str, float] | None) -> None:
    (outcome,) = await ask([SPENT], {"dollars": 1.0}, prices=prices)
    if prices is None:
        assert isinstance(outcome.error, InvalidSettingError)
        assert "this chain of calls has a limit of money" in outcome.error.message
    else:
        assert outcome.usage["cost_usd"] == pytest.approx((40 + 5 * 10) / 10**6)


async def test_an_attempt_that_the_provider_refused_counts_nothing() -> None:
    busy = ModelError("scripted", "unavailable", "status 503", retry_after_s=0.01)
    (done,) = await ask([busy, SPENT], {"tokens": 600}, retries=1)
    assert (done.error, amount_of(done.usage).tokens) == (None, 50)


@requirement("S-14")
async def test_an_attempt_that_was_lost_counts_with_its_reservation_and_the_next_one_must_fit() -> None:
    (done,) = await ask([lost(), SPENT], {"tokens": 2_000}, retries=1)
    assert done.error is None
    reserved = done.usage["reserved_tokens"]
    assert 300 < reserved < 1_000
    assert (done.usage["input_tokens"], done.usage["output_tokens"]) == SPENT
    (refused,) = await ask([lost()], {"tokens": reserved + 100}, retries=1)
    assert isinstance(refused.error, BudgetSpentError)
    assert refused.usage == {"reserved_tokens": reserved}


async def test_without_a_limit_a_lost_attempt_counts_nothing() -> None:
    (failed,) = await ask([lost()], None)
    assert isinstance(failed.error, ModelError)
    assert failed.usage is None


async def test_a_request_that_timed_out_or_was_cancelled_counts_with_its_reservation() -> None:
    overdue = CallTimedOutError("the model", 1.0, layer="model", setting="llm.scripted.timeout_s")
    (failed,) = await ask([overdue], {"tokens": 800})
    assert set(failed.usage) == {"reserved_tokens"}

    begun = asyncio.Event()

    def hang(request: Any) -> ModelTurn:
        begun.set()
        return ModelTurn("Never.", wait_s=60)

    async with connect_agents(ScriptedModel(hang, max_tokens=300)) as mesh:
        for timeout_s in (0.3, 3.0, 30.0):  # on a busy machine the time can be over before the request begins
            cancelled = await mesh.ask("agent.ask", PROMPT, budget={"tokens": 800}, timeout_s=timeout_s)
            if begun.is_set():
                break
    assert isinstance(cancelled.error, CallTimedOutError)


async def test_a_stream_that_stopped_counts_what_came_of_it() -> None:
    turn = ModelTurn("A long answer that breaks off.", tokens=(60, 25), stops=True)
    async with connect_agents(ScriptedModel(turn, max_tokens=300)) as mesh:
        outcome = await mesh.ask("agent.ask", PROMPT, budget={"tokens": 800})
    assert isinstance(outcome.error, ModelError)
    assert amount_of(outcome.usage).tokens == 85
