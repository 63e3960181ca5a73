"""One budget for the whole tree of calls, whatever its shape and however many processes it spans."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.errors import BudgetSpentError, StepFailedError
from retinue.storage.state import State
from tests.doors.test_chains import WITH_AND_WITHOUT_HUB
from tests.system import System, Wire, open_system


class Tree:
    """Agents that each call ``width`` times the one below, at once or one after the other; counts all."""

    def __init__(self, width: int, depth: int, *, at_once: bool = True) -> None:
        self.ran = 0
        self.refused = 0
        self._width = width
        self._at_once = at_once
        self.agents = [self._make(level, last=level == depth) for level in range(depth + 1)]

    def _make(self, level: int, *, last: bool) -> Agent:
        agent = Agent(f"agent-{level}")

        @agent.skill(f"branch_{level}")
        async def branch(ctx: Context) -> int:
            self.ran += 1
            if last:
                return 1
            if self._at_once:
                return 1 + sum(await asyncio.gather(*(self._call(ctx, level) for _ in range(self._width))))
            return 1 + sum([await self._call(ctx, level) for _ in range(self._width)])

        return agent

    async def _call(self, ctx: Context, level: int) -> int:
        try:
            return int(await ctx.call(f"branch_{level + 1}"))
        except BudgetSpentError:
            self.refused += 1
            return 0


async def grow(state: State, tree: Tree, wire: Wire, *, calls: int, hub: bool, **headers: str) -> Any:
    async with open_system(state, trace={"calls": calls}) as system:
        if hub:
            await system.start_hub()
        for agent in tree.agents[1:]:
            await system.start_agent(agent)
        root = await system.start_agent(tree.agents[0])
        return (await wire.call(root.url, "branch_0", **headers)).result


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one by one"])
@pytest.mark.parametrize(("width", "depth"), [(3, 4), (20, 2), (5, 3)])
@WITH_AND_WITHOUT_HUB
async def test_a_tree_that_wants_more_than_its_budget_never_gets_more(
    retinue_home: Any, wire: Wire, hub: bool, width: int, depth: int, at_once: bool
) -> None:
    tree = Tree(width, depth, at_once=at_once)
    counted = await grow(State(retinue_home), tree, wire, calls=30, hub=hub)
    assert counted == tree.ran
    assert 15 <= tree.ran <= 30
    assert tree.refused > 0


@WITH_AND_WITHOUT_HUB
async def test_a_fan_of_fans_passes_with_the_usual_budget(retinue_home: Any, wire: Wire, hub: bool) -> None:
    """Twenty branches with twenty each, all in flight together."""
    tree = Tree(20, 2)
    assert await grow(State(retinue_home), tree, wire, calls=10_000, hub=hub) == 421
    assert tree.refused == 0


@WITH_AND_WITHOUT_HUB
async def test_one_after_the_other_every_call_of_a_budget_can_be_made(
    retinue_home: Any, wire: Wire, hub: bool
) -> None:
    """What a branch did not use comes back with its answer, over every wire on the way."""
    tree = Tree(60, 1, at_once=False)
    assert await grow(State(retinue_home), tree, wire, calls=50, hub=hub) == 50
    assert tree.refused == 11


async def test_a_stranger_who_claims_a_large_budget_gets_no_more_than_a_new_chain(
    retinue_home: Any, wire: Wire
) -> None:
    tree = Tree(20, 1, at_once=False)
    headers = {"x_openstarry_trace_id": "t", "x_retinue_trace": '{"calls_left":1000000}'}
    assert await grow(State(retinue_home), tree, wire, calls=10, hub=True, **headers) == 10


async def test_a_stranger_may_ask_for_a_smaller_budget(retinue_home: Any, wire: Wire) -> None:
    tree = Tree(20, 1, at_once=False)
    headers = {"x_openstarry_trace_id": "t", "x_retinue_trace": '{"calls_left":3}'}
    assert await grow(State(retinue_home), tree, wire, calls=100, hub=True, **headers) == 4


class Workers:
    """An agent whose skill calls a leaf as often as it is told, until the budget is spent."""

    def __init__(self) -> None:
        self.ran = 0
        self.agent, self.leaf = Agent("work-agent"), Agent("leaf-agent")

        @self.agent.skill
        async def work(times: int, ctx: Context) -> int:
            self.ran += 1
            done = 0
            for _ in range(times):
                outcome = await ctx.ask("leaf")
                done += outcome.error is None
            return done

        @self.leaf.skill
        async def leaf() -> str:
            self.ran += 1
            return "leaf"

    async def start(self, system: System) -> str:
        await system.start_agent(self.agent)
        await system.start_agent(self.leaf)
        return (await system.start_hub()).url


def work(step: str, times: int = 100) -> dict[str, Any]:
    return {"id": step, "skill": "work", "with": {"times": times}}


@pytest.mark.parametrize(
    "steps",
    [
        [work(f"s{n}") for n in range(5)],
        [{"id": "all", "parallel": {"mode": "all"}, "steps": [work(f"b{n}") for n in range(5)]}],
        [work("first"), {"id": "all", "parallel": {"mode": "all"}, "steps": [work("b"), work("c")]}],
        [{"id": "l", "loop": {"max": 5}, "steps": [work("round")]}],
    ],
    ids=["steps", "branches", "both", "loop"],
)
async def test_the_steps_and_branches_of_a_run_share_what_its_caller_had(
    retinue_home: Any, wire: Wire, steps: list[Any]
) -> None:
    async with open_system(State(retinue_home), trace={"calls": 40}) as system:
        workers = Workers()
        hub = await workers.start(system)
        workflow = {"name": "w", "steps": steps, "output": "last"}
        await wire.call(hub, "orchestrate_workflow", {"workflow": workflow, "input": {}})
        assert 20 <= workers.ran <= 40


async def test_an_agent_that_runs_workflows_gets_back_what_they_did_not_use(
    retinue_home: Any, wire: Wire
) -> None:
    """And a run that goes on by itself keeps what it was given."""
    async with open_system(State(retinue_home), trace={"calls": 60}) as system:
        workers = Workers()
        hub = await workers.start(system)
        caller = Agent("calling-agent")

        @caller.skill
        async def run_many(skill: str, ctx: Context) -> int:
            done = 0
            for _ in range(12):
                workflow = {"name": "w", "steps": [work("only", times=1)]}
                outcome = await ctx.ask(skill, {"workflow": workflow, "input": {}})
                done += outcome.error is None
            return done

        await system.start_agent(caller)
        assert (await wire.call(hub, "run_many", {"skill": "orchestrate_workflow"})).result == 12
        assert workers.ran == 24
        assert (await wire.call(hub, "run_many", {"skill": "start_run"})).result < 12


async def test_a_run_that_failed_gives_back_what_it_did_not_use(retinue_home: Any, wire: Wire) -> None:
    async with open_system(State(retinue_home), trace={"calls": 60}) as system:
        workers = Workers()
        hub = await workers.start(system)
        caller = Agent("calling-agent")

        @caller.skill
        async def run_failing(ctx: Context) -> list[int]:
            left = []
            for _ in range(10):
                steps = [
                    work("only", times=1),
                    {"id": "bad", "skill": "work", "with": {"times": "${{ 'many' }}"}},
                ]
                asked = {"workflow": {"name": "w", "steps": steps}, "input": {}}
                outcome = await ctx.ask("orchestrate_workflow", asked)
                assert isinstance(outcome.error, StepFailedError)
                left.append(ctx.calls_left)
            return left

        await system.start_agent(caller)
        left = (await wire.call(hub, "run_failing")).result
        # the run itself, the step and its leaf, and the step that is refused
        assert left == [59 - 4 * done for done in range(1, 11)]


async def test_a_call_that_is_cut_off_keeps_its_share(retinue_home: Any, wire: Wire) -> None:
    """It may still be running: only what somebody told is given back."""
    async with open_system(State(retinue_home), trace={"calls": 100}) as system:
        await system.start_hub()
        slow, caller = Agent("slow-agent"), Agent("calling-agent")

        @slow.skill
        async def hang() -> str:
            await asyncio.Event().wait()
            return "never"

        @caller.skill
        async def call_slow(ctx: Context) -> list[int]:
            left = []
            for _ in range(3):
                await ctx.ask("hang", timeout_s=0.05)
                left.append(ctx.calls_left)
            return left

        await system.start_agent(slow)
        base = (await system.start_agent(caller)).url
        first, second, third = (await wire.call(base, "call_slow")).result
        assert 99 - first > 1
        assert first > second > third > 0
