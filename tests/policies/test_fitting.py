"""What ``retinue policy check`` finds of policies that decide nothing beside others."""

from __future__ import annotations

import pytest

from retinue.policies.entities import TeamScope
from retinue.policies.fitting import MeshFit
from retinue.policies.policy_set import load_policies
from tests.mesh.scripted import make_listing, make_skill

CALL = 'principal, action == Retinue::Action::"call"'
PAY = 'resource == Retinue::Skill::"bank/pay"'
GONE = 'resource == Retinue::Skill::"bank/gone"'
BANK = 'resource in Retinue::Agent::"bank"'
SMALL = "when { resource.destructive }"


def find(text: str, default: str = "allow") -> list[str]:
    policies = load_policies({"p.cedar": text}, default="deny" if default == "deny" else "allow")
    fit = MeshFit(policies)
    fit.add(make_listing("bank", make_skill("pay", checked=False)))
    return [f"{finding.policy}: {finding.problem}" for finding in fit.list_findings()]


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        (f"forbid({CALL}, resource)", f"forbid({CALL}, {PAY}) {SMALL}", "a forbids all that it forbids"),
        (f"forbid({CALL}, {BANK})", f"forbid({CALL}, {PAY})", "a forbids all that it forbids"),
        (f"forbid({CALL}, {PAY})", f"forbid({CALL}, {PAY})", "a forbids all that it forbids"),
        (f"forbid({CALL}, {BANK})", f"permit({CALL}, {PAY})", "a forbids all that it permits"),
        (f"forbid({CALL}, {BANK}) {SMALL}", f"permit({CALL}, {PAY})", ""),
        (f"forbid({CALL}, {PAY})", f"forbid({CALL}, {BANK}) {SMALL}", ""),
        (f"forbid({CALL}, {BANK})", f"forbid(principal, action, {BANK}) {SMALL}", ""),
        (
            "forbid(principal, action, resource)",
            'forbid(principal, action == Retinue::Action::"publish", resource)',
            "",
        ),
    ],
)
def test_a_policy_that_another_leaves_nothing_to_decide_is_told(
    first: str, second: str, problem: str
) -> None:
    found = find(f'@id("a") {first}; @id("b") {second};', "deny")
    assert found == ([f"b: {problem}"] if problem else [])
    # of two equal ones, the second is told, so that one of them stays
    turned = find(f'@id("b") {second}; @id("a") {first};', "deny")
    is_equal = first == second
    assert turned == (
        ["a: b forbids all that it forbids"] if is_equal else [f"b: {problem}"] if problem else []
    )


def test_a_policy_of_a_team_about_calls_of_its_agents_concerns_skills_of_others() -> None:
    texts = {"t.cedar": f'@id("pay") forbid({CALL}, {PAY}); @id("gone") forbid({CALL}, {GONE});'}
    fit = MeshFit(load_policies(texts, teams={"t.cedar": TeamScope("shop", frozenset({"seller"}))}))
    fit.add(make_listing("bank", make_skill("pay", checked=False)))
    findings = [(finding.policy, finding.problem) for finding in fit.list_findings()]
    assert findings == [
        ("shop/gone", "no skill is named 'bank/gone'"),
        ("shop/gone", "it concerns no skill of this mesh"),
    ]
