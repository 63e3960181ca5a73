"""Chains of calls over real sockets: from agent to agent, through a hub and without one (exchange 4-7)."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from tests.requirements import requirement
from tests.system import System, Wire


class Chain:
    """Agents that each call the next one's skill; ``depths`` are those at which they ran."""

    def __init__(self) -> None:
        self.depths: list[int] = []

    def link(self, name: str, following: str | None) -> Agent:
        """The agent ``name`` whose skill ``ask_<name>`` calls ``ask_<following>``."""
        agent = Agent(f"agent-{name}")

        @agent.skill(f"ask_{name}")
        async def ask(ctx: Context) -> Any:
            self.depths.append(ctx.trace.depth)
            return "the end" if following is None else await ctx.call(f"ask_{following}")

        return agent


WITH_AND_WITHOUT_HUB = pytest.mark.parametrize("hub", [True, False], ids=["through a hub", "without a hub"])


@requirement("S-14")
@requirement("S-15")
@WITH_AND_WITHOUT_HUB
async def test_a_loop_of_three_agents_ends_at_hop_6_with_its_path_drawn(
    system: System, wire: Wire, hub: bool
) -> None:
    """A → B → C → A … : depths 0 to 5 run, the sixth is refused, and every caller learns why."""
    chain = Chain()
    if hub:
        await system.start_hub()
    first = await system.start_agent(chain.link("a", "b"))
    for name, following in (("b", "c"), ("c", "a")):
        await system.start_agent(chain.link(name, following))
    reply = await wire.call(first.url, "ask_a")
    assert chain.depths == [0, 1, 2, 3, 4, 5]
    message = reply.error["message"]
    assert "hop 6 of at most 5" in message
    path = " → ".join(f"agent-{name}:ask_{name}" for name in "abcabc")
    assert path in message
    assert "the cycle is agent-a → agent-b → agent-c → agent-a" in message


@requirement("S-15")
@pytest.mark.parametrize(
    ("skill", "arguments", "asked"),
    [
        ("ask_b", {}, "agent-b:ask_b"),
        ("call_skill", {"skill": "ask_b"}, "agent-b:ask_b"),
        ("call_skill", {"skill": "ask_b", "agent": "agent-b"}, "agent-b:ask_b"),
        ("call_read_only_skill", {"skill": "ask_b"}, "agent-b:ask_b"),
        ("call_skill", {"skill": "vanish", "agent": "agent-z"}, "agent-z:vanish"),
        ("call_skill", {"skill": "vanish"}, "retinue:call_skill"),
        ("call_skill", {}, "retinue:call_skill"),
        ("list_agents", {}, "retinue:list_agents"),
    ],
)
async def test_the_path_of_a_refusal_by_the_hub_ends_with_the_agent_that_was_asked(
    system: System, wire: Wire, skill: str, arguments: dict[str, Any], asked: str
) -> None:
    await system.start_agent(Chain().link("b", None))
    hub = await system.start_hub()
    hops = [["agent-b", "ask_b"], *(["agent-a", "ask_a"] for _ in range(5))]
    headers = {
        "x_openstarry_trace_id": "deep",
        "x_openstarry_trace_depth": "6",
        "x_retinue_trace": orjson.dumps({"path": hops}).decode(),
    }
    before = "agent-b:ask_b → " + "agent-a:ask_a → " * 5
    for code in (-33007, -33009):
        error = (await wire.call(hub.url, skill, arguments, **headers)).error
        assert error["code"] == code
        assert error["data"]["path"] == before + asked
        assert before + asked in error["message"]
        if code == -33007 and asked == "agent-b:ask_b":
            assert error["data"]["cycle"].startswith("agent-b → agent-a")
            assert error["data"]["cycle"].endswith("agent-a → agent-b")


@requirement("S-14")
@WITH_AND_WITHOUT_HUB
async def test_five_agents_in_a_line_pass(system: System, wire: Wire, hub: bool) -> None:
    """The bound is on chains that go on, not on teams."""
    chain = Chain()
    if hub:
        await system.start_hub()
    names = "abcde"
    served = [
        await system.start_agent(chain.link(name, following))
        for name, following in zip(names, [*names[1:], None], strict=True)
    ]
    assert (await wire.call(served[0].url, "ask_a")).result == "the end"
    assert chain.depths == [0, 1, 2, 3, 4]


@requirement("S-14")
async def test_twenty_branches_on_one_agent_that_calls_on_pass(system: System, wire: Wire) -> None:
    """Siblings of a fan-out do not push each other over the limit (specification 7.5)."""
    chain = Chain()
    await system.start_agent(chain.link("a", "b"))
    await system.start_agent(chain.link("b", None))
    hub = await system.start_hub()
    branches = [{"id": f"b{n}", "skill": "ask_a", "with": {}} for n in range(20)]
    workflow = {"name": "fan-out", "steps": [{"id": "all", "parallel": {"mode": "all"}, "steps": branches}]}
    reply = await wire.call(hub.url, "orchestrate_workflow", {"workflow": workflow, "input": {}})
    assert reply.result["output"] == {f"b{n}": "the end" for n in range(20)}
    assert sorted(chain.depths) == [1] * 20 + [2] * 20


@requirement("S-13")
async def test_one_trace_id_goes_through_the_whole_chain(system: System, wire: Wire) -> None:
    """As a header of every request on the way, one hop deeper at each agent."""
    chain = Chain()
    hub = await system.start_hub()
    first = await system.start_agent(chain.link("a", "b"))
    await system.start_agent(chain.link("b", "c"))
    await system.start_agent(chain.link("c", None))
    await wire.call(hub.url, "refresh_agents")
    system.recording.clear()
    await wire.call(first.url, "ask_a", x_openstarry_trace_id="one-chain")
    sent = [
        (one.to, one.headers["x-openstarry-trace-id"], one.headers.get("x-openstarry-trace-depth"))
        for one in system.recording.exchanges
    ]
    assert sent == [
        ("agent-a", "one-chain", None),
        ("hub", "one-chain", "1"),
        ("agent-b", "one-chain", "1"),
        ("hub", "one-chain", "2"),
        ("agent-c", "one-chain", "2"),
    ]


async def test_the_version_that_an_agent_wishes_for_is_kept_on_the_way_through_the_hub(
    system: System, wire: Wire
) -> None:
    """``ctx.call(…, version=…)``: an offer of another version is no offer."""
    caller = Agent("caller")

    @caller.skill
    async def ask_old(version: str, ctx: Context) -> Any:
        return await ctx.call("ask_end", version=version)

    await system.start_hub()
    old = Agent("old-agent", version="1.2.0")

    @old.skill
    async def ask_end() -> str:
        return "1.2.0"

    await system.start_agent(old)
    base = (await system.start_agent(caller)).url
    assert (await wire.call(base, "ask_old", {"version": "^1.0"})).result == "1.2.0"
    refused = await wire.call(base, "ask_old", {"version": ">=2"})
    assert "No version of ask_end fits >=2" in refused.error["message"]


@WITH_AND_WITHOUT_HUB
async def test_a_stranger_does_not_reach_a_skill_that_runs_code_through_another_agent(
    system: System, wire: Wire, hub: bool
) -> None:
    ran: list[str] = []
    runner = Agent("runner-agent")
    asker = Agent("asker-agent")

    @runner.skill(runs_code=True)
    async def run_it() -> str:
        ran.append("ran")
        return "ran"

    @asker.skill
    async def ask(ctx: Context) -> str:
        return str(await ctx.call("run_it"))

    if hub:
        await system.start_hub()
    await system.start_agent(runner)
    served = await system.start_agent(asker)
    refused = await wire.call(served.url, "ask")
    assert "wants a token" in refused.error["message"]
    assert ran == []
    allowed = await wire.call(served.url, "ask", authorization=system.token)
    assert (allowed.result, ran) == ("ran", ["ran"])
