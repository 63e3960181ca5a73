"""Policies over every endpoint: a forbidden skill never runs, and the answer names the policy and why.

A way is one entry of ``WAYS``: how a caller asks for a refund. Each is asked of a mesh whose policies forbid
the skill, and of one whose policies let a person decide.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.client.connecting import connect
from retinue.core.errors import PolicyDeniedError
from tests.a2a.wire import ask as ask_a2a
from tests.a2a.wire import message, naming
from tests.mcp.clients import sessionless
from tests.system import Hub, Reply, Served, System, Wire

ON_REFUNDS = 'principal, action == Retinue::Action::"call", resource == Retinue::Skill::"bank/refund"'
DENY = f'@id("no-refunds") @reason("refunds are closed") forbid({ON_REFUNDS});'
LARGE = "context.args has amount && context.args.amount > 100"
NUMBERS = itertools.count()


@dataclass(slots=True)
class Bank:
    """A mesh with an agent that refunds, and one that asks it to; ``refunds`` are those that ran."""

    system: System
    hub: Hub
    bank: Served
    clerk: Served
    wire: Wire
    refunds: list[int] = field(default_factory=list)

    def post(self, path: str, body: Any, **headers: str) -> Awaitable[Reply]:
        return self.wire.post(f"{self.hub.url}{path}", body, **headers)


def make_agents(refunds: list[int]) -> tuple[Agent, Agent]:
    bank, clerk = Agent("bank", version="1.0.0"), Agent("clerk", version="1.0.0")

    @bank.skill(expose=True)
    async def refund(amount: int) -> str:
        """Pays money back."""
        refunds.append(amount)
        return f"refunded {amount}"

    @bank.skill(expose=True, read_only=True)
    async def balance() -> int:
        """Tells the balance."""
        return 7

    @clerk.skill(expose=True)
    async def help_customer(amount: int, ctx: Context) -> Any:
        """Asks the bank."""
        return await ctx.call("refund", {"amount": amount}, agent="bank")

    return bank, clerk


def write_policies(system: System, text: str, name: str = "own.cedar") -> None:
    folder = system.state.root / "policies"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text, "utf-8")


async def open_bank(system: System, wire: Wire, policies: str, *, durable: bool = False) -> Bank:
    write_policies(system, policies)
    refunds: list[int] = []
    bank, clerk = make_agents(refunds)
    served = [await system.start_agent(agent) for agent in (bank, clerk)]
    hub = await system.start_hub(durable=durable)
    return Bank(system, hub, served[0], served[1], wire, refunds)


def mcp(url: str, **tool: Any) -> Callable[[Bank], Awaitable[Reply]]:
    asked, headers = sessionless("tools/call", tool)
    return lambda bank: bank.wire.post(url.format(bank=bank), asked, **headers)


def a2a(url: str) -> Callable[[Bank], Awaitable[Reply]]:
    part = naming("refund", amount=900)
    return lambda bank: ask_a2a(bank.wire, url.format(bank=bank), "SendMessage", {"message": message(part)})


def messages(url: str, receiver: str) -> Callable[[Bank], Awaitable[Reply]]:
    def ask(bank: Bank) -> Awaitable[Reply]:
        envelope = {
            "message_id": f"m-{next(NUMBERS)}",
            "performative": "TASK_REQUEST",
            "receiver": {"agent_id": receiver},
            "payload": {"task_type": "refund", "task_parameters": {"amount": 900}},
        }
        return bank.wire.post(url.format(bank=bank), envelope)

    return ask


def call(url: str, name: str = "refund", /, **arguments: Any) -> Callable[[Bank], Awaitable[Reply]]:
    return lambda bank: bank.wire.call(url.format(bank=bank), name, arguments or {"amount": 900})


STEPS = {"name": "w", "steps": [{"id": "a", "skill": "refund", "with": {"amount": 900}}]}

WAYS: dict[str, Callable[[Bank], Awaitable[Reply]]] = {
    "/execute of the hub": call("{bank.hub.url}"),
    "/execute of the agent at the hub": call("{bank.hub.url}/agents/bank"),
    "call_skill": call("{bank.hub.url}", "call_skill", skill="refund", arguments={"amount": 900}),
    "another agent, through the hub": call("{bank.hub.url}", "help_customer", amount=900),
    "a step of a workflow": call("{bank.hub.url}", "orchestrate_workflow", workflow=STEPS, input={}),
    "MCP of the hub": mcp("{bank.hub.url}/mcp", name="bank__refund", arguments={"amount": 900}),
    "MCP, call_skill": mcp(
        "{bank.hub.url}/mcp",
        name="call_skill",
        arguments={"skill": "refund", "arguments": {"amount": 900}},
    ),
    "MCP of the agent at the hub": mcp(
        "{bank.hub.url}/agents/bank/mcp", name="refund", arguments={"amount": 900}
    ),
    "REST of the agent at the hub": lambda bank: bank.post("/agents/bank/tools/call/refund", {"amount": 900}),
    "A2A of the hub": a2a("{bank.hub.url}"),
    "A2A of the agent at the hub": a2a("{bank.hub.url}/agents/bank"),
    "messages of the hub": messages("{bank.hub.url}/messages", "bank"),
    "messages of the agent at the hub": messages("{bank.hub.url}/agents/bank/messages", ""),
}
"""Ways to a skill of an agent behind the hub."""

DIRECT: dict[str, Callable[[Bank], Awaitable[Reply]]] = {
    "/execute of the agent": call("{bank.bank.url}"),
    "REST of the agent": lambda bank: bank.wire.post(f"{bank.bank.url}/tools/call/refund", {"amount": 900}),
    "MCP of the agent": mcp("{bank.bank.url}/mcp", name="refund", arguments={"amount": 900}),
    "A2A of the agent": a2a("{bank.bank.url}"),
    "messages of the agent": messages("{bank.bank.url}/messages", ""),
}
"""Ways around the hub."""


@pytest.mark.parametrize("mode", ["mcp", "execute"])
async def test_a_policy_allows_what_it_does_not_forbid(system: System, wire: Wire, mode: str) -> None:
    bank = await open_bank(system, wire, DENY.replace(");", f") when {{ {LARGE} }};"))
    way = mcp("{bank.hub.url}/mcp", name="bank__refund", arguments={"amount": 5})
    reply = await (way if mode == "mcp" else call("{bank.hub.url}", amount=5))(bank)
    assert b"refunded 5" in reply.body
    assert bank.refunds == [5]
    assert b"refunds are closed (no-refunds)" in (await WAYS["MCP of the hub"](bank)).body


async def test_a_forbidden_skill_runs_on_no_way_and_the_answer_names_the_policy(
    system: System, wire: Wire
) -> None:
    bank = await open_bank(system, wire, DENY)
    for name, ask in {**WAYS, **DIRECT}.items():
        reply = await ask(bank)
        assert bank.refunds == [], name
        assert b"refunds are closed (no-refunds)" in reply.body, (name, reply.body)
    error = (await WAYS["/execute of the hub"](bank)).error
    assert error["code"] == -33003
    assert error["data"] == {
        "type": "policy_denied",
        "policies": ["no-refunds"],
        "remedy": "ask the owner of this mesh; retinue policy explain shows which policies decide",
    }
    async with connect(bank.hub.url, token=system.token.removeprefix("Bearer ")) as mesh:
        with pytest.raises(PolicyDeniedError) as denied:
            await mesh.call("refund", amount=900)
    assert denied.value.policies == ("no-refunds",)
    assert bank.refunds == []
