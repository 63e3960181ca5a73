"""Policies of a mesh that runs: what they bind, how files are loaded, and what the owner is told.

A way is one entry of ``WAYS`` or ``DIRECT``: how a caller asks for a refund. The tests of
``test_policy_matrix`` ask on each of them.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.client.connecting import connect
from retinue.core.errors import PolicyDeniedError
from retinue.core.record import HUB_NAME
from retinue.policies.policy_set import Policy
from retinue.runtime.commands.own_mesh import open_own_mesh
from retinue.runtime.parts.policies import LoadedPolicies
from retinue.settings_tables import PolicyTable
from retinue.web.issued_tokens import TokenFile
from tests.a2a.wire import ask as ask_a2a
from tests.a2a.wire import message, naming
from tests.mcp.clients import read_result, sessionless
from tests.system import WAIT_S, Hub, Reply, Served, System, Wire

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

    @clerk.skill(expose=True)
    async def plan_refund(ctx: Context) -> Any:
        """Starts a workflow for its caller, as an agent in Markdown does."""
        arguments = {"workflow": STEPS, "input": {}}
        outcome = await ctx.ask_as_caller("orchestrate_workflow", arguments, agent=HUB_NAME)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

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

CLERK_STEPS = {"name": "w", "steps": [{"id": "a", "skill": "help_customer", "with": {"amount": 1}}]}

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


async def test_the_error_of_a_forbidden_call_names_its_policies_for_programs(
    system: System, wire: Wire
) -> None:
    bank = await open_bank(system, wire, DENY)
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


ASK = f'@id("ask-first") @reason("a person pays") @effect("approve") forbid({ON_REFUNDS}) when {{ {LARGE} }};'


def read_approval(reply: Reply) -> str:
    """The id of the approval that an answer names, whatever the protocol."""
    named = re.search(rb"\(approval ([0-9a-f]{12})\)", reply.body)
    assert named is not None, reply.body
    return named[1].decode()


async def answer(bank: Bank, approval: str, verdict: str, comment: str = "") -> Reply:
    owner = {"authorization": f"Bearer {bank.system.state.owner_token()}"}
    asked = {"approval": approval, "verdict": verdict, "comment": comment}
    return await bank.wire.call(bank.hub.url, "answer_approval", asked, **owner)


async def test_policies_and_clients_read_the_hints_of_the_owner(system: System, wire: Wire) -> None:
    hints = {"bank/refund": {"destructive": True}, "bank/balance": {"read_only": False}}
    table = system.settings.hub.model_copy(update={"hints": hints})
    system.settings = system.settings.model_copy(update={"hub": table})
    bank = await open_bank(
        system, wire, '@id("safe") forbid(principal, action, resource) when { resource.destructive };'
    )
    assert b"is denied: safe" in (await WAYS["/execute of the hub"](bank)).body
    reply = await wire.call(bank.hub.url, "call_read_only_skill", {"skill": "balance"})
    assert "is not marked read-only" in reply.error["message"]
    (system.state.root / "policies" / "own.cedar").write_text("", "utf-8")
    bank.hub.process.get(LoadedPolicies).reload()
    asked, headers = sessionless("tools/list", {})
    reply = await wire.post(f"{bank.hub.url}/mcp", asked, **headers)
    tools = read_result(reply.body)["result"]["tools"]
    annotations = {tool["name"]: tool.get("annotations", {}) for tool in tools if "bank" in tool["name"]}
    assert annotations["bank__refund"]["destructiveHint"] is True
    assert not annotations["bank__balance"].get("readOnlyHint")


async def test_a_yes_counts_for_the_same_caller_arguments_and_policies_only(
    system: System, wire: Wire
) -> None:
    bank = await open_bank(system, wire, ASK, durable=True)
    approval = read_approval(await WAYS["/execute of the hub"](bank))
    await answer(bank, approval, "yes")
    _, ann = TokenFile(system.state.keys).issue(("mesh",), name="ann")
    as_ann = await bank.wire.call(bank.hub.url, "refund", {"amount": 900}, authorization=f"Bearer {ann}")
    for other in (await call("{bank.hub.url}", amount=901)(bank), as_ann):
        assert other.error["data"]["type"] == "approval_needed"
        assert other.error["data"]["approval"] != approval
    write_policies(system, ASK + '@id("more") forbid(principal == Retinue::Agent::"x", action, resource);')
    bank.hub.process.get(LoadedPolicies).reload()
    assert read_approval(await WAYS["/execute of the hub"](bank)) != approval
    assert bank.refunds == []
    assert (await call("{bank.hub.url}", amount=5)(bank)).result == "refunded 5"


def list_loaded(bank: Bank) -> Sequence[Policy]:
    gate = bank.hub.process.get(LoadedPolicies).gate
    return () if gate is None else gate.engine.policies.policies


async def test_changed_files_are_loaded_whole_or_not_at_all(system: System, wire: Wire) -> None:
    bank = await open_bank(system, wire, DENY)
    loaded = bank.hub.process.get(LoadedPolicies)
    watching = asyncio.create_task(loaded.watch(look_s=0.005))

    async def wait_for(*, problem: bool, policies: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while (loaded.problem is not None, len(list_loaded(bank))) != (problem, policies):
                await asyncio.sleep(0.005)

    try:
        write_policies(
            system, '@id("other") forbid(principal, action, resource) when { resource.x };', "b.cedar"
        )
        await wait_for(problem=True, policies=1)
        assert b"(no-refunds)" in (await WAYS["/execute of the hub"](bank)).body
        (problem,) = await loaded.find_problems()
        assert problem.name == "policies"
        assert "policies/b.cedar: other: attribute `x`" in problem.reason
        write_policies(system, DENY.replace("no-refunds", "new"), "b.cedar")
        await wait_for(problem=False, policies=2)
        assert not await loaded.find_problems()
        assert b"(new)" in (await WAYS["/execute of the hub"](bank)).body
        for name in ("own.cedar", "b.cedar"):
            (system.state.root / "policies" / name).unlink()
        # a volume that is gone looks like this
        await wait_for(problem=True, policies=2)
        assert b"(new)" in (await WAYS["/execute of the hub"](bank)).body
        loaded.reload()
        assert len(list_loaded(bank)) == 2
        write_policies(system, "// no policies", "none.cedar")
        await wait_for(problem=False, policies=0)
        gate = loaded.gate
        assert gate is not None
        assert not gate.engine.policies.decides
    finally:
        watching.cancel()


async def test_what_watched_policies_would_have_done_is_in_the_audit(system: System, wire: Wire) -> None:
    system.settings = system.settings.model_copy(update={"policy": PolicyTable(mode="watch")})
    bank = await open_bank(system, wire, DENY)
    assert (await WAYS["/execute of the hub"](bank)).result == "refunded 900"
    assert (await wire.call(bank.hub.url, "balance", {})).result == 7
    rows = {row["skill"]: row for row in bank.hub.audit.recent(10) if row["type"] == "CALL:ENDED"}
    gate = bank.hub.process.get(LoadedPolicies).gate
    assert gate is not None
    assert rows["refund"]["policy"] == {
        "verdict": "deny",
        "ids": ["no-refunds"],
        "digest": gate.engine.policies.digest,
        "watched": True,
    }
    assert "policy" not in rows["balance"]


async def test_a_rule_for_a_caller_binds_what_agents_and_workflows_do_for_it(
    system: System, wire: Wire
) -> None:
    closed = 'context.origin in Retinue::Group::"guests"'
    (system.state.root / "policies").mkdir()
    (system.state.root / "policies" / "groups.yaml").write_text("guests: ['token:ann']", "utf-8")
    bank = await open_bank(system, wire, DENY.replace(");", f") when {{ {closed} }};"))
    tokens = {
        name: f"Bearer {TokenFile(system.state.keys).issue(('mesh',), name=name)[1]}"
        for name in ("ann", "bob")
    }
    calls: list[tuple[str, dict[str, Any]]] = [
        ("refund", {"amount": 1}),
        ("help_customer", {"amount": 1}),
        ("orchestrate_workflow", {"workflow": STEPS, "input": {}}),
        ("orchestrate_workflow", {"workflow": CLERK_STEPS, "input": {}}),
        ("call_skill", {"skill": "help_customer", "arguments": {"amount": 1}}),
    ]
    for skill, arguments in calls:
        for name in ("ann", "bob"):
            bank.refunds.clear()
            reply = await wire.call(bank.hub.url, skill, arguments, authorization=tokens[name])
            assert len(bank.refunds) == (name == "bob"), (skill, name, reply.body)
            assert (b"(no-refunds)" in reply.body) is (name == "ann"), (skill, name, reply.body)
    # nobody says of himself who he is
    bank.refunds.clear()
    forged = {"x_retinue_trace": '{"origin": "token:bob"}', "authorization": tokens["ann"]}
    reply = await wire.call(bank.hub.url, "help_customer", {"amount": 1}, **forged)
    assert b"(no-refunds)" in reply.body
    # a chain that began with another id than a signed one does not tell who began it
    named = {"x_openstarry_trace_id": "mine", "authorization": tokens["ann"]}
    reply = await wire.call(bank.hub.url, "help_customer", {"amount": 1}, **named)
    assert b"does not tell who began it" in reply.body
    assert bank.refunds == []


async def test_a_rule_for_an_agent_binds_the_workflows_that_it_starts_for_its_callers(
    system: System, wire: Wire
) -> None:
    rule = DENY.replace("principal,", 'principal == Retinue::Agent::"clerk",')
    bank = await open_bank(system, wire, rule)
    assert (await wire.call(bank.hub.url, "refund", {"amount": 1})).result == "refunded 1"
    for skill, arguments in (("help_customer", {"amount": 2}), ("plan_refund", {})):
        reply = await wire.call(bank.hub.url, skill, arguments)
        assert b"(no-refunds)" in reply.body, (skill, reply.body)
    assert bank.refunds == [1]


CLOSED_TO_ANN = DENY.replace(");", ') when { context.origin == Retinue::Caller::"token:ann" };')


async def test_a_watched_policy_denies_no_call_whose_origin_is_unknown(system: System, wire: Wire) -> None:
    bank = await open_bank(system, wire, CLOSED_TO_ANN.replace("@reason", '@mode("watch") @reason'))
    reply = await wire.call(bank.hub.url, "help_customer", {"amount": 1}, x_openstarry_trace_id="mine")
    assert (reply.result, bank.refunds) == ("refunded 1", [1])


async def test_in_mode_watch_nested_calls_know_who_began_them(system: System, wire: Wire) -> None:
    system.settings = system.settings.model_copy(update={"policy": PolicyTable(mode="watch")})
    bank = await open_bank(system, wire, CLOSED_TO_ANN)
    for name in ("bob", "ann"):
        token = TokenFile(system.state.keys).issue(("mesh",), name=name)[1]
        await wire.call(bank.hub.url, "help_customer", {"amount": 2}, authorization=f"Bearer {token}")
        rows = [row for row in bank.hub.audit.recent(10) if row["type"] == "CALL:ENDED"]
        row = next(row for row in rows if row["skill"] == "refund")
        assert row.get("policy", {}).get("ids") == (["no-refunds"] if name == "ann" else None)


async def test_the_owner_compares_policies_with_the_mesh_and_others_do_not(
    system: System, wire: Wire
) -> None:
    bank = await open_bank(system, wire, DENY)
    texts = [
        f'@id("typo") forbid({ON_REFUNDS}) when {{ context.args has amonut && context.args.amonut > 1 }};',
        f'@id("text") forbid({ON_REFUNDS}) when {{ context.args has amount && context.args.amount == "x" }};',
        '@id("name") forbid(principal in Retinue::Group::"guest", action, '
        'resource in Retinue::Agent::"bnak");',
        '@id("moot") permit(principal, action, resource);',
        f'@id("all") forbid({ON_REFUNDS});',
        f'@id("never") @effect("approve") forbid({ON_REFUNDS});',
        f'@id("fine") forbid({ON_REFUNDS}) when {{ {LARGE} }};',
    ]
    arguments = {"files": {"a.cedar": "".join(texts)}, "groups": {"guests": ["anonymous"]}}
    owner = {"authorization": f"Bearer {system.state.owner_token()}"}
    checked = (await wire.call(bank.hub.url, "check_policies", arguments, **owner)).result
    assert [(finding["policy"], finding["problem"]) for finding in checked["findings"]] == [
        ("typo", "bank/refund: it has no argument amonut; did you mean amount?"),
        ("typo", "all forbids all that it forbids"),
        ("text", "bank/refund: amount is integer, and the policy reads text"),
        ("text", "all forbids all that it forbids"),
        ("name", "no agent is named 'bnak'; did you mean 'bank'?"),
        ("name", "no group is named 'guest'; did you mean 'guests'?"),
        ("name", "it concerns no skill of this mesh"),
        ("moot", "a permit changes nothing while policy.default is allow; write a forbid"),
        ("never", "all forbids all that it asks about"),
        ("fine", "all forbids all that it forbids"),
    ]
    refused = await wire.call(bank.hub.url, "check_policies", arguments)
    assert refused.error["data"]["type"] == "insufficient_scope"
    explained = await wire.call(bank.hub.url, "explain_policies", {"skill": "refund", "caller": "x"}, **owner)
    assert (explained.result["verdict"], explained.result["policies"]) == ("deny", ["no-refunds"])
    assert explained.result["concerned"][0]["reason"] == "refunds are closed"


async def test_policies_of_an_agent_are_explained_to_nobody_who_does_not_see_it(
    system: System, wire: Wire
) -> None:
    bank = await open_bank(system, wire, DENY)
    tokens = TokenFile(system.state.keys)
    asked = {"skill": "refund", "arguments": {"amount": 1}}
    for agents in ((), ("bank", HUB_NAME), ("clerk", HUB_NAME)):
        token = tokens.issue(("mesh",), name="ci", agents=agents)[1]
        for request in (asked, {**asked, "agent": "bank"}):
            reply = await wire.call(
                bank.hub.url, "explain_policies", request, authorization=f"Bearer {token}"
            )
            if "clerk" in agents:
                assert "error" in reply.json
                assert b"no-refunds" not in reply.body
            else:
                assert reply.result["policies"] == ["no-refunds"]


async def test_lists_show_a_caller_what_policies_let_it_use(system: System, wire: Wire) -> None:
    (system.state.root / "policies").mkdir()
    (system.state.root / "policies" / "groups.yaml").write_text("guests: ['token:ann']", "utf-8")
    guests = 'principal in Retinue::Group::"guests", action in Retinue::Action::"use", resource'
    policies = f'@id("read-only") forbid({guests}) unless {{ resource.read_only }};'
    bank = await open_bank(system, wire, policies)
    await wire.call(bank.hub.url, "refresh_agents", {})
    tokens = [TokenFile(system.state.keys).issue(("mesh",), name=name)[1] for name in ("ann", "bob")]
    listed: list[tuple[set[str], set[str], set[str]]] = []
    for token in tokens:
        authorization = f"Bearer {token}"
        tools: list[set[str]] = []
        for path in ("/mcp", "/agents/bank/mcp"):
            asked, headers = sessionless("tools/list", {})
            reply = await bank.post(path, asked, authorization=authorization, **headers)
            tools.append({tool["name"] for tool in read_result(reply.body)["result"]["tools"]})
        search = {"query": "pays money back", "limit": 50}
        rows = await wire.call(bank.hub.url, "find_skills", search, authorization=authorization)
        listed.append((tools[0], tools[1], {row["skill"] for row in rows.result["skills"]}))
    (ann_tools, ann_bank, ann_skills), (bob_tools, bob_bank, bob_skills) = listed
    assert {"bank__balance", "bank__refund", "call_skill"} <= bob_tools
    assert (bob_bank, "refund" in bob_skills) == ({"balance", "refund"}, True)
    assert "bank__balance" in ann_tools
    assert ann_tools.isdisjoint({"bank__refund", "call_skill", "clerk__help_customer"})
    assert (ann_bank, "refund" in ann_skills) == ({"balance"}, False)
    refused = await wire.call(bank.hub.url, "refund", {"amount": 1}, authorization=f"Bearer {tokens[0]}")
    assert refused.error["data"]["policies"] == ["read-only"]


async def test_the_mesh_of_an_agent_without_a_hub_loads_changed_files(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoadedPolicies.watch, "__defaults__", (0.01,))
    write_policies(system, DENY)
    async with open_own_mesh(system.settings, system.state) as process:
        loaded = process.get(LoadedPolicies)
        write_policies(system, DENY.replace("no-refunds", "never"), "other.cedar")
        async with asyncio.timeout(WAIT_S):
            while loaded.gate is None or len(loaded.gate.engine.policies.policies) < 2:
                await asyncio.sleep(0.01)
