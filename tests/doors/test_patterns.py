"""The patterns of P-31 and the check before sending of P-13, over real sockets."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from tests.requirements import requirement
from tests.system import System, Wire


class Shop:
    """Agents that keep a ledger of what they did; ``fails`` holds the failures to come by skill."""

    def __init__(self) -> None:
        self.ledger: list[str] = []
        self.fails: dict[str, int] = {}

    def agent(self, name: str, *skills: str) -> Agent:
        agent = Agent(f"{name}-agent")
        for skill in skills:
            self._add(agent, skill)
        return agent

    def _add(self, agent: Agent, skill: str) -> None:
        @agent.skill(skill)
        async def act(order: str) -> str:
            if self.fails.get(skill, 0) > 0:
                self.fails[skill] -= 1
                self.ledger.append(f"{skill} fails")
                raise ValueError("not this time")
            self.ledger.append(skill)
            return f"{order} {skill}"


async def run(wire: Wire, url: str, workflow: dict[str, Any], given: Any) -> Any:
    return await wire.call(url, "orchestrate_workflow", {"workflow": workflow, "input": given})


def sent_to(system: System, agent: str) -> list[str]:
    """The methods of the requests that reached this agent."""
    return [
        one.request["method"] for one in system.recording.exchanges if (one.to, one.method) == (agent, "POST")
    ]


@requirement("P-31")
async def test_saga_what_was_done_is_undone_at_the_agents_that_did_it(system: System, wire: Wire) -> None:
    shop = Shop()
    shop.fails["ship"] = 99
    await system.start_agent(shop.agent("stock", "reserve", "release"))
    await system.start_agent(shop.agent("bank", "charge", "refund"))
    await system.start_agent(shop.agent("post", "ship"))
    hub = await system.start_hub()
    given = {"order": "${{ input.order }}"}
    steps = [
        {
            "id": "reserve",
            "skill": "reserve",
            "with": given,
            "compensate": {"skill": "release", "with": given},
        },
        {"id": "charge", "skill": "charge", "with": given, "compensate": {"skill": "refund", "with": given}},
        {"id": "ship", "skill": "ship", "with": given},
    ]
    reply = await run(wire, hub.url, {"name": "order", "steps": steps}, {"order": "A1"})
    assert "not this time" in reply.error["message"]
    assert shop.ledger == ["reserve", "charge", "ship fails", "refund", "release"]
    assert sent_to(system, "stock-agent") == ["reserve", "release"]
    assert sent_to(system, "bank-agent") == ["charge", "refund"]


@requirement("P-31")
async def test_retry_a_step_that_fails_twice_is_done_the_third_time(system: System, wire: Wire) -> None:
    shop = Shop()
    shop.fails["ship"] = 2
    await system.start_agent(shop.agent("post", "ship"))
    hub = await system.start_hub()
    step = {"id": "ship", "skill": "ship", "retry": {"attempts": 3, "delay": "10ms"}}
    workflow = {"name": "order", "steps": [step], "output": "${{ steps.ship.output }}"}
    reply = await run(wire, hub.url, workflow, {"order": "A1"})
    assert reply.result["output"] == "A1 ship"
    assert sent_to(system, "post-agent") == ["ship"] * 3


@requirement("P-31")
async def test_map_reduce_each_item_is_a_call_and_one_call_takes_all_results(
    system: System, wire: Wire
) -> None:
    counter, adder = Agent("count-agent"), Agent("add-agent")

    @counter.skill
    async def count_words(text: str) -> int:
        return len(text.split())

    @adder.skill
    async def add(numbers: list[int]) -> int:
        return sum(numbers)

    for agent in (counter, adder):
        await system.start_agent(agent)
    hub = await system.start_hub()
    workflow = {
        "name": "words",
        "steps": [
            {
                "id": "map",
                "foreach": {"in": "${{ input.texts }}"},
                "steps": [{"id": "count", "skill": "count_words", "with": {"text": "${{ loop.item }}"}}],
            },
            {"id": "reduce", "skill": "add", "with": {"numbers": "${{ steps.map.output }}"}},
        ],
        "output": "${{ steps.reduce.output }}",
    }
    reply = await run(wire, hub.url, workflow, {"texts": ["a b", "c", "d e f"]})
    assert reply.result["output"] == 6
    assert sent_to(system, "count-agent") == ["count_words"] * 3
    assert sent_to(system, "add-agent") == ["add"]


@requirement("P-31")
async def test_choreography_each_agent_calls_the_next_by_skill_and_no_workflow_knows_the_order(
    system: System, wire: Wire
) -> None:
    """By calls; there are no events to which an agent could subscribe."""

    def link(name: str, skill: str, following: str | None) -> Agent:
        agent = Agent(f"{name}-agent")

        @agent.skill(skill)
        async def act(ctx: Context, done: str = "") -> str:
            here = f"{done} {skill}".strip()
            return here if following is None else str(await ctx.call(following, {"done": here}))

        return agent

    urls = {}
    for name, skill, following in (("a", "draft", "check"), ("b", "check", "print"), ("c", "print", None)):
        urls[name] = (await system.start_agent(link(name, skill, following))).url
    await system.start_hub()
    assert (await wire.call(urls["a"], "draft")).result == "draft check print"
    ran = [skill for name in "abc" for skill in sent_to(system, f"{name}-agent")]
    assert ran == ["draft", "check", "print"]
    # the hub finds the next agent and forwards the call; it runs nothing of its own
    assert sent_to(system, "hub") == ["check", "print"]


@requirement("P-13")
@pytest.mark.parametrize("way", ["execute", "call_skill", "agent path", "workflow step"])
async def test_arguments_are_checked_before_anything_is_sent_to_the_agent(
    system: System, wire: Wire, way: str
) -> None:
    shop = Shop()
    await system.start_agent(shop.agent("post", "ship"))
    hub = await system.start_hub()
    await wire.call(hub.url, "ship", {"order": "A1"})
    assert sent_to(system, "post-agent") == ["ship"]
    if way == "execute":
        reply = await wire.call(hub.url, "ship", {"order": 1})
    elif way == "call_skill":
        reply = await wire.call(hub.url, "call_skill", {"skill": "ship", "arguments": {"order": 1}})
    elif way == "agent path":
        reply = await wire.call(f"{hub.url}/agents/post-agent", "ship", {"order": 1})
    else:
        step = {"id": "ship", "skill": "ship", "with": {"order": 1}}
        reply = await run(wire, hub.url, {"name": "order", "steps": [step]}, {})
    assert "field 'order' must be" in reply.error["message"]
    assert sent_to(system, "post-agent") == ["ship"], "the second call was never sent"
    assert shop.ledger == ["ship"]
