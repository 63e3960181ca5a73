"""What is done to the mesh itself: pushes to its registry, and answers about calls that wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retinue.approvals.records import ApprovalRequest, ApprovalStore, MemoryApprovals
from retinue.core.call import Principal
from retinue.core.errors import InvalidSettingError, PolicyDeniedError
from retinue.hub.approvals.book import ApprovalBook
from retinue.policies.decision import Engine
from retinue.policies.gate import Gate
from retinue.policies.policy_set import Default, load_policies
from retinue.web.security import LOCAL_TOKEN, OWNER_TOKEN

ANN = Principal("token:ann", "token", frozenset({"exposed", "mesh", "approves"}))
BOB = replace(ANN, id="token:bob")
WHO = 'principal == Retinue::Caller::"token:ann"'


def make_gate(text: str, default: Default = "allow") -> Gate:
    return Gate(Engine(load_policies({"p.cedar": text}, default=default)))


async def test_a_policy_forbids_answers_about_calls_of_an_agent_to_all_but_the_owner() -> None:
    text = (
        '@id("bank") @reason("two persons") forbid(principal, action == Retinue::Action::"answer", '
        'resource in Retinue::Agent::"bank") when { principal.name != "token:bob" };'
    )
    store = MemoryApprovals()

    async def open_store() -> ApprovalStore:
        return store

    book = ApprovalBook(open_store, check_answer=make_gate(text).check_answer)
    asked = {
        agent: (await store.ask(ApprovalRequest("token:x", agent, "1.0.0", "pay", {}), expires_s=60)).id
        for agent in ("bank", "files")
    }
    with pytest.raises(PolicyDeniedError, match=r"answer about bank/pay.*two persons") as denied:
        await book.answer(ANN, asked["bank"], "yes", "", depth=0)
    assert denied.value.policies == ("bank",)
    assert (await book.show(ANN, asked["bank"]))["state"] == "open"
    assert (await book.answer(ANN, asked["files"], "yes", "", depth=0))["state"] == "approved"
    make_gate(text).check_answer(BOB, "bank", "pay")
    for owner in (OWNER_TOKEN, LOCAL_TOKEN):
        make_gate(text).check_answer(owner, "bank", "pay")


def test_a_policy_forbids_pushes_by_the_name_of_the_repository() -> None:
    text = (
        f'@id("own") forbid({WHO}, action == Retinue::Action::"publish", resource) '
        'unless { resource.name like "agents/ann-*" };'
    )
    gate = make_gate(text, default="deny")
    with pytest.raises(PolicyDeniedError, match="publish of agents/bank") as denied:
        gate.check_publish(ANN, "agents/bank")
    assert denied.value.policies == ("own",)
    gate.check_publish(ANN, "agents/ann-1")
    gate.check_publish(BOB, "agents/bank")  # permitted by default: only calls and reads need a permit
    assert gate.figures.hits == {("own", "deny"): 1}
    gate.mode = "watch"
    gate.check_publish(ANN, "agents/bank")
    assert gate.figures.hits["own", "watch"] == 1


def test_policies_forbid_imports_by_their_place_and_starts_by_the_workflow() -> None:
    gate = make_gate(
        '@id("tls") @reason("https only") forbid(principal, action == Retinue::Action::"import", resource) '
        'when { resource.place like "http://*" && resource.kind != "openapi" };'
        f'@id("stored") forbid({WHO}, action == Retinue::Action::"start", resource) '
        'when { resource.inline || resource == Retinue::Workflow::"payout" };'
    )
    with pytest.raises(PolicyDeniedError, match=r"import of db is denied: https only \(tls\)"):
        gate.check_import("db", "mcp", "http://db.example")
    gate.check_import("db", "mcp", "https://db.example")
    gate.check_import("db", "openapi", "http://db.example/openapi.json")
    for workflow, is_inline in (("payout", False), ("report", True)):
        with pytest.raises(PolicyDeniedError, match=f"start of {workflow}"):
            gate.check_start(ANN, workflow, is_inline)
        gate.check_start(BOB, workflow, is_inline)
    gate.check_start(ANN, "report", False)


def test_policies_of_calls_do_not_concern_owner_actions() -> None:
    text = '@id("a") forbid(principal, action, resource); @id("b") forbid(principal, action in '
    gate = make_gate(text + 'Retinue::Action::"use", resource);')
    gate.check_publish(ANN, "agents/bank")
    gate.check_answer(ANN, "bank", "pay")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('permit(principal, action == Retinue::Action::"publish", resource);', "permit with the action"),
        (
            '@effect("approve") forbid(principal, action == Retinue::Action::"answer", resource);',
            "approve with the action",
        ),
        (
            'forbid(principal, action in [Retinue::Action::"answer", Retinue::Action::"call"], resource);',
            "'answer' and 'call'",
        ),
        ('permit(principal, action == Retinue::Action::"start", resource);', "permit with the action"),
        (
            'forbid(principal, action == Retinue::Action::"import", resource) when { resource.inline };',
            "inline",
        ),
        (
            'forbid(principal, action == Retinue::Action::"publish", resource) when { context.hour > 1 };',
            "hour",
        ),
    ],
)
def test_policies_about_owner_actions_only_deny(text: str, message: str) -> None:
    with pytest.raises(InvalidSettingError, match=message):
        load_policies({"p.cedar": f'@id("p") {text}'})
