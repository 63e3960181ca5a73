"""The yes of a person for similar calls: a policy that covers those calls and no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from retinue.approvals.records import Approval, ApprovalRequest
from retinue.core.errors import InvalidParametersError, InvalidSettingError
from retinue.policies.decision import CallFacts, Engine
from retinue.policies.entities import Caller, Resource
from retinue.policies.policy_set import load_policies
from retinue.policies.standing_yes import draft_rule
from tests.mesh.scripted import make_skill
from tests.policies.test_gate import BOB

ASK = '@id("ask") @effect("approve") %s forbid(principal, action == Retinue::Action::"call", resource);'
UNTIL = "2026-11-27T12:00:00Z"
ARGUMENTS = {"amount": 900, "note": 'a "b" \\ \n é', "rate": 0.5, "ok": True, "to": None}


def draft(arguments: dict[str, Any] = ARGUMENTS, by: str = "token:boss", free: tuple[str, ...] = ()) -> str:
    request = ApprovalRequest(BOB.id, "bank", "1.0.0", "refund", arguments, terms="policies x")
    return draft_rule(Approval.ask(request, 0.0, 60.0, "a1"), free, UNTIL, by)


def decide(
    rule: str,
    arguments: Any = ARGUMENTS,
    *,
    approvers: str = "",
    caller: str = BOB.id,
    version: str = "1.0.0",
    skill: str = "refund",
    now: str = "2026-11-27T11:59:59Z",
) -> str:
    asking = ASK % (f'@approvers("{approvers}")' if approvers else "")
    policies = load_policies({"p.cedar": asking, "yes-a1.cedar": rule})
    assert policies.digest == load_policies({"p.cedar": asking}).digest
    resource = Resource.make("bank", version, "memory", "own", make_skill(skill))
    context = {"now": {"__extn": {"fn": "datetime", "arg": now}}}
    facts = CallFacts(Caller.of(replace(BOB, id=caller)), resource, arguments=arguments, context=context)
    return Engine(policies).decide(facts).verdict


def test_an_equal_call_is_permitted_until_the_time_and_no_other_one() -> None:
    rule = draft()
    assert decide(rule) == "allow"
    others: list[dict[str, Any]] = [
        {"now": UNTIL},
        {"caller": "token:eve"},
        {"version": "1.0.1"},
        {"skill": "close"},
        {"arguments": {**ARGUMENTS, "amount": 901}},
        {"arguments": {**ARGUMENTS, "amount": "900"}},
        {"arguments": {**ARGUMENTS, "amount": {"__entity": {"type": "Retinue::Caller", "id": "x"}}}},
        {"arguments": {**ARGUMENTS, "to": "eve"}},
        {"arguments": {**ARGUMENTS, "account": "eve"}},
        {"arguments": {name: value for name, value in ARGUMENTS.items() if name != "ok"}},
        {"arguments": [900]},
    ]
    assert {str(other): decide(rule, **other) for other in others} == dict.fromkeys(
        map(str, others), "approve"
    )


def test_a_call_of_ninety_arguments_has_a_rule_and_one_of_more_is_refused_with_the_remedy() -> None:
    arguments = {f"argument{number}": number for number in range(90)}
    rule = draft(arguments)
    assert decide(rule, arguments) == "allow"
    assert decide(rule, {**arguments, "argument89": 0}) == "approve"
    many = {f"argument{number}": number for number in range(120)}
    with pytest.raises(InvalidParametersError, match=r"more than 200 operators.*set some free"):
        draft(many)
    assert decide(draft(many, free=tuple(many)[:40]), {**many, "argument0": 9}) == "allow"


def test_a_free_argument_may_differ_and_an_unknown_one_is_refused() -> None:
    rule = draft(free=("amount",))
    assert "amount may differ" in rule
    assert decide(rule, {**ARGUMENTS, "amount": 5}) == "allow"
    assert decide(rule, {**ARGUMENTS, "rate": 0.25}) == "approve"
    with pytest.raises(InvalidParametersError, match="no argument 'x'"):
        draft(free=("x",))
    for value in ([1], {"a": 1}, 0.12345, 1e20):
        with pytest.raises(InvalidParametersError, match="set it free"):
            draft({"a": value})
        assert decide(draft({"a": value, "b": 1}, free=("a",)), {"a": 7, "b": 1}) == "allow"


ODD_NAMES = ["a-b", "to whom", "in", "if", "__cedar", 'a" || true', "a]", "[x", "é", "\u200b", "a.b", "1", ""]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_name_that_is_no_identifier_is_written_as_a_text(name: str) -> None:
    arguments = {name: 1, "b": "x", "c": None}
    rule = draft(arguments)
    assert decide(rule, arguments) == "allow"
    for other in ({**arguments, name: 2}, {"b": "x"}, {**arguments, f"{name}x": 1}, {**arguments, "c": 1}):
        assert decide(rule, other) == "approve"
    assert decide(draft({name: None, "b": 1}), {"b": 1}) == "allow"
    assert decide(draft(arguments, free=(name,)), {**arguments, name: [2]}) == "allow"


def test_a_name_that_no_policy_reads_may_be_free_only_and_a_long_text_must_be() -> None:
    for name, value, problem in (
        ("__entity", 1, "such a name cannot be read"),
        ("a", "x" * 70_000, "set long arguments free"),
    ):
        with pytest.raises(InvalidParametersError, match=problem):
            draft({name: value})
        assert decide(draft({name: value, "b": 1}, free=(name,)), {name: 7, "b": 1}) == "allow"


def test_a_yes_for_similar_calls_covers_no_call_that_an_agent_makes_for_the_caller() -> None:
    asking = load_policies({"p.cedar": ASK % "", "yes-a1.cedar": draft()})
    resource = Resource.make("bank", "1.0.0", "memory", "own", make_skill("refund"))
    context = {"now": {"__extn": {"fn": "datetime", "arg": "2026-11-27T11:59:59Z"}}}
    facts = CallFacts(Caller.of(BOB), resource, arguments=ARGUMENTS, context=context)
    assert Engine(asking).decide(facts).verdict == "allow"
    assert Engine(asking).decide(replace(facts, is_direct=False)).verdict == "approve"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"terms": "policies of guards, listing x"}, "a guard asks"),
        ({"terms": ""}, "a step of a run asks"),
        ({"skill": "resource notes://monday"}, "it is about a read"),
        ({"skill": "prompt summarise"}, "it is about a read"),
        ({"through": "clerk"}, "the agent clerk calls for the caller"),
    ],
)
def test_a_question_that_no_policy_answers_gets_no_rule(fields: dict[str, Any], problem: str) -> None:
    request = ApprovalRequest(BOB.id, "bank", "1.0.0", "refund", {}, terms="policies x, listing y")
    with pytest.raises(InvalidParametersError, match=problem):
        draft_rule(Approval.ask(replace(request, **fields), 0.0, 60.0, "a1"), (), UNTIL, "owner")


def test_a_yes_counts_for_the_policies_whose_approver_gave_it() -> None:
    for by, approvers, verdict in (
        ("token:boss", "token:boss", "allow"),
        ("token:boss", "token:finance-*", "approve"),
        ("owner", "token:finance-*", "allow"),
        (BOB.id, "", "approve"),
        (BOB.id, "caller", "allow"),
    ):
        assert decide(draft(by=by), approvers=approvers) == verdict, (by, approvers)


def test_a_yes_lifts_no_denial_and_permits_nothing_by_default() -> None:
    resource = Resource.make("bank", "1.0.0", "memory", "own", make_skill("refund"))
    context = {"now": {"__extn": {"fn": "datetime", "arg": "2026-11-27T11:59:59Z"}}}
    facts = CallFacts(Caller.of(BOB), resource, arguments=ARGUMENTS, context=context)
    closed = '@id("no") forbid(principal, action, resource);'
    for files in ({"p.cedar": ASK % "", "no.cedar": closed}, {}):
        policies = load_policies({**files, "yes-a1.cedar": draft()}, default="allow" if files else "deny")
        assert Engine(policies).decide(facts).verdict == "deny"


@pytest.mark.parametrize(
    "text",
    [
        '@id("a") @effect("approved") @by("x") @args("") forbid(principal, action, resource);',
        '@id("a") @effect("approved") @args("") permit(principal, action, resource);',
        '@id("a") @effect("approved") @by("x") permit(principal, action, resource);',
        '@id("a") @effect("approved") @by("x") @args("") @mode("watch") permit(principal, action, resource);',
        '@id("a") @by("x") permit(principal, action, resource);',
        '@id("a") @effect("approved") @by("x") @args("[1]") permit(principal, action, resource);',
    ],
)
def test_an_incomplete_yes_is_refused(text: str) -> None:
    with pytest.raises(InvalidSettingError):
        load_policies({"p.cedar": text})
