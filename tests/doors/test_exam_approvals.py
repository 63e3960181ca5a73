"""An exam asks no person: it opens no question, and leaves a yes to the call that it was given for."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.record import Example
from retinue.hub.examiner import Examiner, ExamLimits
from retinue.mesh.directory.directory import Directory
from retinue.mesh.exams import ExamResult
from retinue.settings import Settings
from retinue.web.issued_tokens import TokenFile
from tests.doors.test_policies import write_policies
from tests.system import Hub, System, Wire

CARD = "4111 1111 1111 1111"
ON_PAY = 'principal, action == Retinue::Action::"call", resource == Retinue::Skill::"bank/pay"'
ASK = f'@id("ask") @reason("money is for people") @effect("approve") forbid({ON_PAY});'
DENY = f'@id("shut") @reason("the bank is shut") forbid({ON_PAY});'


def make_agents(paid: list[str]) -> tuple[Agent, Agent]:
    bank, clerk = Agent("bank", version="1.0.0"), Agent("clerk", version="1.0.0")

    @bank.skill(read_only=True, examples=[Example(arguments={"to": CARD})])
    async def pay(to: str) -> str:
        """Says what a payment would cost."""
        paid.append(to)
        return to

    @clerk.skill(read_only=True, examples=[Example(arguments={"to": CARD})])
    async def help_customer(to: str, ctx: Context) -> Any:
        """Asks the bank."""
        return await ctx.call("pay", {"to": to}, agent="bank")

    return bank, clerk


async def open_bank(system: System, paid: list[str]) -> Hub:
    for agent in make_agents(paid):
        await system.start_agent(agent)
    hub = await system.start_hub(durable=True)
    await hub.process.get(Directory).ensure_fresh()
    return hub


async def examine(hub: Hub, name: str) -> ExamResult:
    directory = hub.process.get(Directory)
    entry = directory.find_named(name)
    assert entry is not None
    listing = await directory.open(entry)
    assert listing is not None
    return await Examiner(hub.process.dispatcher.dispatch, ExamLimits()).examine(listing, name)


async def approvals(hub: Hub, system: System, wire: Wire, state: str) -> list[dict[str, Any]]:
    owner = f"Bearer {system.state.owner_token()}"
    reply = await wire.call(hub.url, "list_approvals", {"state": state}, authorization=owner)
    rows: list[dict[str, Any]] = reply.result["approvals"]
    return rows


async def test_an_exam_that_a_policy_asks_a_person_about_opens_no_question(
    system: System, wire: Wire
) -> None:
    write_policies(system, ASK)
    paid: list[str] = []
    hub = await open_bank(system, paid)
    result = await examine(hub, "bank")
    assert result.status == "not_examined"
    assert "a policy asks a person" in result.describe()
    assert "money is for people (ask)" in result.describe()
    assert (await examine(hub, "clerk")).status != "passed"
    assert await approvals(hub, system, wire, "open") == []
    assert paid == []


async def test_an_exam_that_a_guard_asks_a_person_about_opens_no_question(system: System, wire: Wire) -> None:
    system.settings = Settings.model_validate(
        {"guards": {"cards": {"use": "sensitive", "arguments": "ask", "skills": ["bank/pay"]}}}
    )
    paid: list[str] = []
    hub = await open_bank(system, paid)
    result = await examine(hub, "bank")
    assert result.status == "not_examined"
    assert "a guard asks a person" in result.describe()
    assert (await examine(hub, "clerk")).status != "passed"
    assert await approvals(hub, system, wire, "open") == []
    assert paid == []


async def test_an_exam_leaves_the_yes_to_the_call_that_it_was_given_for(system: System, wire: Wire) -> None:
    write_policies(system, ASK)
    paid: list[str] = []
    hub = await open_bank(system, paid)

    # the scopes of the exam, which belong to what a yes is for
    _, ann = TokenFile(system.state.keys).issue(("mesh",), name="ann")

    async def help_customer() -> Any:
        return await wire.call(hub.url, "help_customer", {"to": CARD}, authorization=f"Bearer {ann}")

    assert "approval" in str((await help_customer()).error)
    (question,) = await approvals(hub, system, wire, "open")
    assert question["caller"] == "clerk"
    yes = {"approval": question["approval"], "verdict": "yes"}
    owner = f"Bearer {system.state.owner_token()}"
    answered = await wire.call(hub.url, "answer_approval", yes, authorization=owner)
    assert answered.result["state"] == "approved"
    assert (await examine(hub, "clerk")).status != "passed"
    assert paid == []
    assert (await help_customer()).result == CARD
    assert paid == [CARD]


@pytest.mark.parametrize("name", ["bank", "clerk"])
async def test_a_rule_that_denies_an_exam_says_so_as_before(system: System, wire: Wire, name: str) -> None:
    write_policies(system, DENY)
    hub = await open_bank(system, [])
    result = await examine(hub, name)
    assert "the bank is shut (shut)" in result.describe()
    assert await approvals(hub, system, wire, "open") == []
