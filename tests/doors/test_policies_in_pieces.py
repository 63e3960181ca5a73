"""A model that asks for a large refund in pieces, so that no person is asked, and the limit that stops it.

The policies are those of the guide.
"""

from __future__ import annotations

import re
from typing import Any

from retinue.web.issued_tokens import TokenFile
from tests.docs.pages import ROOT
from tests.doors.test_policies import Bank, open_bank
from tests.support.thinking import ScriptedModel, say, think, use
from tests.system import System, Wire

GUIDE = (ROOT / "docs" / "guides" / "policies.md").read_text("utf-8")
LIMITED = "is limited to 5 per day by origin: many small refunds add up (1-refunds-in-pieces)"


def read_policy(name: str) -> str:
    """A policy of the section with ten of them."""
    match = re.search(rf'^@id\("{name}"\).*?;$', GUIDE, re.DOTALL | re.MULTILINE)
    assert match is not None
    return match[0]


def refund(amount: int) -> tuple[str, dict[str, Any]]:
    return "bank__refund", {"amount": amount}


def make_model() -> ScriptedModel:
    """A model that has 4,500 to pay back, and pays it in sums about which no person is asked."""
    return ScriptedModel(
        use(refund(500), refund(499), refund(498)),
        use(("clerk__help_customer", {"amount": 497})),
        use(refund(496)),
        use(refund(495), ("clerk__help_customer", {"amount": 494})),
        use(("clerk__plan_refund", {})),
        say("done"),
    )


async def ask(bank: Bank, token: str, skill: str, **arguments: Any) -> Any:
    reply = await bank.wire.call(bank.hub.url, skill, arguments, authorization=f"Bearer {token}")
    return reply.json


async def test_a_refund_that_a_model_asks_for_in_pieces_ends_at_the_limit_of_its_caller(
    system: System, wire: Wire
) -> None:
    model = make_model()
    await system.start_agent(model.agent)
    bank = await open_bank(
        system, wire, read_policy("1-large-refunds") + read_policy("1-refunds-in-pieces"), durable=True
    )
    ann, bob = (TokenFile(system.state.keys).issue(("mesh",), name=name)[1] for name in ("ann", "bob"))
    task = think("Pay 4,500 back", tools=["bank/*", "clerk/*"])
    answered = await ask(bank, ann, "orchestrate_workflow", workflow=task, input={})
    assert answered["result"]["output"] == "done", answered
    outcomes = model.list_outcomes()
    assert sorted(bank.refunds) == [496, 497, 498, 499, 500]
    assert [is_error for _, is_error in outcomes] == [False] * 5 + [True] * 3, outcomes
    assert all(LIMITED in text for text, is_error in outcomes if is_error), outcomes
    # a further run, another agent and the caller itself have no places of their own
    again = await ask(bank, ann, "orchestrate_workflow", workflow=task, input={}, run="again")
    assert again["result"]["output"] == "done"
    assert all(is_error for _, is_error in model.list_outcomes())
    for skill in ("refund", "help_customer"):
        assert LIMITED in (await ask(bank, ann, skill, amount=1))["error"]["message"]
    assert len(bank.refunds) == 5
    assert "result" in await ask(bank, bob, "refund", amount=2)
    assert len(bank.refunds) == 6


async def test_without_the_limit_no_person_sees_the_pieces(system: System, wire: Wire) -> None:
    """What the guide says of a policy that asks above a sum, so that its remedy is not taken for granted."""
    model = make_model()
    await system.start_agent(model.agent)
    bank = await open_bank(system, wire, read_policy("1-large-refunds"), durable=True)
    task = think("Pay 4,500 back", tools=["bank/*"])
    await wire.call(bank.hub.url, "orchestrate_workflow", {"workflow": task, "input": {}})
    assert sum(bank.refunds) > 500
    assert (await wire.call(bank.hub.url, "list_approvals", {})).result["approvals"] == []
