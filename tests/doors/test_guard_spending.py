"""The tokens and the money of a chain of calls over real sockets: model agents, thinkers and hubs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import Answer
from retinue.core.errors import BudgetSpentError, ExecutionFailedError, InvalidSettingError
from retinue.core.usage import amount_of
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.storage.state import State
from retinue.testing import ScriptedModel
from retinue.testing.model_script import ModelTurn
from tests.doors.test_chains import WITH_AND_WITHOUT_HUB
from tests.doors.test_guard_strangers import card
from tests.requirements import requirement
from tests.system import Reply, System, Wire, open_system, publish

PROMPT = {"prompt": "Think about it."}


@dataclass
class Model:
    """A scripted model agent that counts what it spends; each request takes ``tokens``."""

    tokens: tuple[int, int] = (400, 100)
    name: str = "model"
    prices: dict[str, float] | None = None
    max_tokens: int = 300
    requests: int = 0
    agent: ScriptedModel = field(init=False)

    def __post_init__(self) -> None:
        def turn(request: Any) -> ModelTurn:
            self.requests += 1
            return ModelTurn("Go on.", tokens=self.tokens)

        self.agent = ScriptedModel(
            turn,
            repeats=True,
            name=self.name,
            model=f"{self.name}-1",
            prices=self.prices,
            max_tokens=self.max_tokens,
        )

    @property
    def spent(self) -> int:
        return self.requests * sum(self.tokens)


class Thinkers:
    """Two agents that ask the model and then each other, on and on."""

    def __init__(self, model: str = "model") -> None:
        self.ran = 0
        self.agents = [self._make("a", "b", model), self._make("b", "a", model)]

    def _make(self, name: str, other: str, model: str) -> Agent:
        agent = Agent(f"{name}-agent")

        @agent.skill(f"think_{name}")
        async def think(ctx: Context) -> str:
            self.ran += 1
            await ctx.call("agent.ask", PROMPT, agent=model)
            return str(await ctx.call(f"think_{other}"))

        return agent


async def start(system: System, *agents: Agent, hub: bool = True) -> str:
    """The url of the hub, or of the first agent."""
    urls = [(await system.start_agent(agent)).url for agent in agents]
    return (await system.start_hub()).url if hub else urls[0]


def usage_of(reply: Reply) -> dict[str, Any]:
    usage: dict[str, Any] = orjson.loads(reply.headers.get("x-retinue-usage", "{}"))
    return usage


def limited(**limits: float) -> dict[str, str]:
    return {"x_retinue_trace": orjson.dumps(limits).decode()}


@requirement("S-14")
@WITH_AND_WITHOUT_HUB
@pytest.mark.parametrize("budget", [1_500, 3_000])
async def test_a_loop_of_two_thinkers_ends_before_the_request_that_no_longer_fits(
    retinue_home: Any, wire: Wire, hub: bool, budget: int
) -> None:
    async with open_system(State(retinue_home)) as system:
        model, thinkers = Model(), Thinkers()
        url = await start(system, *thinkers.agents, model.agent, hub=hub)
        reply = await wire.call(url, "think_a", **limited(tokens_left=budget))
    error = reply.error
    assert error["data"]["type"] == "budget_spent"
    assert (error["data"]["what"], error["data"]["setting"]) == ("tokens", "trace.tokens")
    assert "tokens left" in error["message"]
    assert model.requests >= 2
    assert model.spent <= budget
    assert amount_of(usage_of(reply)).tokens == model.spent, "what is reported is exact"


@requirement("S-14")
async def test_a_chain_over_two_hubs_of_different_keys_spends_one_budget(
    retinue_home: Path, wire: Wire
) -> None:
    """An agent asks the model of its mesh, then one of another mesh, which asks the same model."""
    shelves = {name: LayoutRegistry(retinue_home / f"shelf-{name}") for name in ("one", "two")}
    model, near, far = Model(), Agent("near-agent"), Agent("far-agent")

    @near.skill
    async def begin(ctx: Context) -> str:
        await ctx.call("agent.ask", PROMPT, agent="model")
        return str(await ctx.call("finish"))

    @far.skill
    async def finish(ctx: Context) -> str:
        return str(await ctx.call("agent.ask", PROMPT, agent="model"))

    async with (
        open_system(State(retinue_home / "1"), registries=(shelves["one"].name,)) as here,
        open_system(State(retinue_home / "2"), registries=(shelves["two"].name,)) as there,
    ):
        for agent in (near, model.agent):
            await here.start_agent(agent)
        await there.start_agent(far)
        one = (await here.start_hub(hub_id="hub-1")).url
        two = (await there.start_hub(hub_id="hub-2")).url
        await publish(shelves["one"], card("far-agent", f"{two}/agents/far-agent", "finish"))
        await publish(shelves["two"], card("model", f"{one}/agents/model", "agent.ask"))
        enough = await wire.call(one, "begin", **limited(tokens_left=3_000))
        assert enough.result == "Go on."
        assert amount_of(usage_of(enough)).tokens == model.spent == 1_000, "what both asked for"
        refused = await wire.call(one, "begin", **limited(tokens_left=900))
    assert refused.error["data"]["type"] == "budget_spent"
    assert model.requests == 3, "the request that no longer fits is not made"


@WITH_AND_WITHOUT_HUB
async def test_money_ends_the_chain_as_tokens_do(retinue_home: Any, wire: Wire, hub: bool) -> None:
    async with open_system(State(retinue_home), trace={"dollars": 0.006}) as system:
        model, thinkers = Model(prices={"input": 2.0, "output": 10.0}), Thinkers()
        url = await start(system, *thinkers.agents, model.agent, hub=hub)
        reply = await wire.call(url, "think_a")
    assert reply.error["data"]["what"] == "money"
    cost = model.requests * (400 * 2 + 100 * 10) / 1_000_000
    assert model.requests >= 2
    assert usage_of(reply)["cost_usd"] == pytest.approx(cost)
    assert cost <= 0.006


async def test_a_model_without_prices_is_refused_where_money_is_limited(
    retinue_home: Any, wire: Wire
) -> None:
    async with open_system(State(retinue_home)) as system:
        model = Model()
        url = await start(system, model.agent)
        refused = await wire.call(url, "agent.ask", PROMPT, **limited(dollars_left=1))
        assert refused.error["data"]["type"] == InvalidSettingError.type
        assert "llm.model.prices" in refused.error["message"]
        assert model.requests == 0
        assert (await wire.call(url, "agent.ask", PROMPT, **limited(tokens_left=10_000))).result == "Go on."


async def test_the_answer_is_cut_to_what_the_chain_has_left(retinue_home: Any, wire: Wire) -> None:
    async with open_system(State(retinue_home)) as system:
        model = Model(tokens=(100, 900), max_tokens=4_000)
        url = await start(system, model.agent)
        reply = await wire.call(url, "agent.ask", PROMPT, **limited(tokens_left=700))
    assert reply.result == "Go on."
    assert amount_of(usage_of(reply)).tokens <= 700


@requirement("S-14")
@WITH_AND_WITHOUT_HUB
async def test_calls_in_flight_at_once_spend_no_more_than_there_is(
    retinue_home: Any, wire: Wire, hub: bool
) -> None:
    async with open_system(State(retinue_home)) as system:
        model, fan = Model(), Agent("fan-agent")

        @fan.skill
        async def ask_many(times: int, ctx: Context) -> int:
            outcomes = await asyncio.gather(
                *(ctx.ask("agent.ask", PROMPT, agent="model") for _ in range(times))
            )
            assert all(one.error is None or isinstance(one.error, BudgetSpentError) for one in outcomes)
            return sum(one.error is None for one in outcomes)

        url = await start(system, fan, model.agent, hub=hub)
        reply = await wire.call(url, "ask_many", {"times": 4}, **limited(tokens_left=5_000))
        assert reply.result == 4, "equal shares of 5,000 hold a request of some 750 each"
        reply = await wire.call(url, "ask_many", {"times": 12}, **limited(tokens_left=5_000))
        assert model.spent == (4 + reply.result) * 500
        assert amount_of(usage_of(reply)).tokens == reply.result * 500


async def test_what_two_models_spent_comes_back_as_one_sum_with_both_names(
    retinue_home: Any, wire: Wire
) -> None:
    async with open_system(State(retinue_home)) as system:
        one, other, helper = Model(), Model(name="other", tokens=(10, 5)), Agent("helper-agent")

        @helper.skill
        async def solve(ctx: Context) -> str:
            await ctx.call("agent.ask", PROMPT, agent="model")
            await ctx.call("agent.ask", PROMPT, agent="other")
            return "solved"

        @helper.skill
        async def fail(ctx: Context) -> str:
            await ctx.call("agent.ask", PROMPT, agent="model")
            raise ExecutionFailedError("no luck")

        url = await start(system, helper, one.agent, other.agent)
        usage = usage_of(await wire.call(url, "solve"))
        failed = await wire.call(url, "fail")
    assert (usage["input_tokens"], usage["output_tokens"]) == (410, 105)
    assert usage["models"] == ["model-1", "other-1"]
    assert usage["further"] == {"input_tokens": 410, "output_tokens": 105}
    assert failed.error["message"].endswith("no luck")
    assert usage_of(failed)["input_tokens"] == 400, "a failed call has spent it all the same"


async def test_a_model_that_gives_no_answer_keeps_its_share(retinue_home: Any, wire: Wire) -> None:
    async with open_system(State(retinue_home)) as system:
        slow, helper = Agent("slow-agent"), Agent("helper-agent")

        @slow.skill
        async def hang() -> str:
            await asyncio.Event().wait()
            return "never"

        @helper.skill
        async def wait(ctx: Context) -> list[Any]:
            await ctx.ask("hang", timeout_s=0.05, budget={"tokens": 300})
            return [ctx.tokens_left, ctx.dollars_left]

        url = await start(system, helper, slow)
        reply = await wire.call(url, "wait", **limited(tokens_left=1_000))
    assert reply.result == [700, None]
    assert usage_of(reply) == {"reserved_tokens": 300}


@WITH_AND_WITHOUT_HUB
async def test_a_skill_that_only_reports_counts_as_well(retinue_home: Any, wire: Wire, hub: bool) -> None:
    """A process of the mesh may report more than its share; then less than nothing is left."""
    async with open_system(State(retinue_home)) as system:
        worker, helper = Agent("worker-agent"), Agent("helper-agent")

        @worker.skill
        async def spend(tokens: int) -> Answer:
            return Answer("spent", usage={"model": "m", "output_tokens": tokens})

        @helper.skill
        async def spend_twice(tokens: int, ctx: Context) -> int | None:
            await ctx.call("spend", {"tokens": tokens}, budget={"tokens": 100})
            await ctx.call("spend", {"tokens": 10}, budget={"tokens": 100})
            return ctx.tokens_left

        url = await start(system, helper, worker, hub=hub)
        for tokens, left in ((90, 900), (500, 490), (1_500, 0)):
            reply = await wire.call(url, "spend_twice", {"tokens": tokens}, **limited(tokens_left=1_000))
            assert reply.result == left
            assert amount_of(usage_of(reply)).tokens == tokens + 10


async def test_a_skill_that_calls_a_model_itself_reserves_and_settles(retinue_home: Any, wire: Wire) -> None:
    async with open_system(State(retinue_home)) as system:
        agent = Agent("own-agent")

        @agent.skill
        async def think(times: int, ctx: Context) -> int:
            for _ in range(times):
                with ctx.reserve(tokens=400, asked="my model") as spending:
                    spending.settle({"input_tokens": 200, "output_tokens": 50})
            return ctx.tokens_left or 0

        url = await start(system, agent)
        reply = await wire.call(url, "think", {"times": 3}, **limited(tokens_left=1_000))
        assert (reply.result, amount_of(usage_of(reply)).tokens) == (250, 750)
        refused = await wire.call(url, "think", {"times": 9}, **limited(tokens_left=1_000))
        assert refused.error["data"]["what"] == "tokens"
        assert "my model needs 400 tokens" in refused.error["message"]
        assert amount_of(usage_of(refused)).tokens == 750


# runs


def ask(step: str) -> dict[str, Any]:
    return {"id": step, "skill": "agent.ask", "agent": "model", "with": PROMPT}


@pytest.mark.parametrize(
    "steps",
    [
        [ask(f"s{n}") for n in range(12)],
        [{"id": "all", "parallel": {"mode": "all"}, "steps": [ask(f"b{n}") for n in range(12)]}],
        [{"id": "l", "loop": {"max": 12}, "steps": [ask("round")]}],
    ],
    ids=["steps", "branches", "loop"],
)
async def test_a_run_spends_what_its_caller_gave_and_reports_it(
    retinue_home: Any, wire: Wire, steps: list[Any]
) -> None:
    async with open_system(State(retinue_home)) as system:
        model = Model()
        url = await start(system, model.agent)
        workflow = {"name": "w", "steps": steps, "output": "last"}
        asked = {"workflow": workflow, "input": {}}
        reply = await wire.call(url, "orchestrate_workflow", asked, **limited(tokens_left=4_000))
        assert model.spent <= 4_000
        assert amount_of(usage_of(reply)).tokens == model.spent
        whole = await wire.call(url, "orchestrate_workflow", asked)
        assert whole.result["output"]
        assert amount_of(usage_of(whole)).tokens == 12 * 500
