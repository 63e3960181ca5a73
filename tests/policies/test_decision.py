"""Decisions: what combines with what, and that whatever keeps a policy from being evaluated denies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cedarpy
import pytest

from retinue.core.call import Principal
from retinue.core.errors import InvalidSettingError
from retinue.core.record import Hints, Skill
from retinue.policies.cases import parse_cases
from retinue.policies.decision import CallFacts, Decision, Engine, _Cut
from retinue.policies.entities import CALL, LIST, Caller, Groups, Resource, name_principal
from retinue.policies.policy_set import load_policies

ANY = 'principal, action == Retinue::Action::"call", resource'
REFUND = 'principal, action == Retinue::Action::"call", resource == Retinue::Skill::"bank/refund"'
ANN = Principal("token:ann", "token", frozenset({"exposed", "mesh"}))


def engine(text: str, groups: Groups | None = None, **options: Any) -> Engine:
    return Engine(load_policies({"a.cedar": text}, groups=groups, **options))


def facts(
    skill: str = "bank/refund", caller: str = "token:ann", arguments: Any = None, **more: Any
) -> CallFacts:
    agent, _, name = skill.partition("/")
    hints, tags = more.pop("hints", Hints()), more.pop("tags", ())
    resource = Resource.make(agent, "1.0.0", "home", "own_mesh", Skill(name, hints=hints, tags=tags))
    arguments = {} if arguments is None else arguments
    return CallFacts(Caller.of(replace(ANN, id=caller)), resource, CALL, arguments, more)


def decide(text: str, call: CallFacts | None = None, **options: Any) -> Decision:
    return engine(text, **options).decide(call or facts())


PERMIT = f'@id("permit") permit({ANY});'
DENY = f'@id("deny") forbid({ANY});'
ASK = f'@id("ask") @effect("approve") forbid({ANY});'
ASK_TOO = f'@id("ask-too") @effect("approve") forbid({REFUND});'
ERROR = f'@id("error") forbid({ANY}) when {{ context.args has n && context.args.n + 1 > 5 }};'
ASK_ERROR = ERROR.replace('"error")', '"ask-error") @effect("approve")')
LARGEST = {"n": 2**63 - 1}

TABLE = [
    ("", "allow", "allow", []),
    ("", "deny", "deny", []),
    (PERMIT, "deny", "allow", ["permit"]),
    (DENY, "allow", "deny", ["deny"]),
    (PERMIT + DENY, "deny", "deny", ["deny"]),
    (ASK, "allow", "approve", ["ask"]),
    (ASK + ASK_TOO, "allow", "approve", ["ask", "ask-too"]),
    (ASK + DENY, "allow", "deny", ["deny"]),
    (ASK, "deny", "deny", []),
    (PERMIT + ASK, "deny", "approve", ["ask"]),
    (ERROR, "allow", "deny", []),
    (PERMIT + ERROR, "deny", "deny", []),
    (ASK + ERROR, "allow", "deny", []),
    (ASK_ERROR, "allow", "deny", []),
    (ASK + ASK_ERROR, "allow", "deny", []),
]


@pytest.mark.parametrize(("text", "default", "verdict", "ids"), TABLE)
def test_rules_decide_before_obligations_and_errors_deny(
    text: str, default: Any, verdict: str, ids: list[str]
) -> None:
    decision = decide(text, facts(arguments=LARGEST), default=default)
    assert decision.verdict == verdict
    assert [policy.id for policy in decision.policies] == ids
    assert ("overflow" in decision.problem) == ("error" in text)


def test_a_policy_that_reads_an_argument_without_exact_form_denies_and_is_named() -> None:
    text = f'@id("limit") forbid({REFUND}) when {{ context.args has n && context.args.n > 100 }};'
    for value in ("500", 1.5, 2**64, {"__entity": {"type": "Retinue::Caller", "id": "x"}}):
        decision = decide(text, facts(arguments={"n": value}))
        assert (decision.verdict, [policy.id for policy in decision.policies]) == ("deny", ["limit"])
        assert decision.problem.startswith("n is ")
    # nobody reads it for another skill
    assert decide(text, facts("bank/balance", arguments={"n": "500"})).verdict == "allow"
    assert decide(text, facts(arguments={"n": None})).verdict == "allow"


def test_policies_that_read_one_argument_as_two_types_deny() -> None:
    text = (
        f'@id("a") forbid({ANY}) when {{ context.args has n && context.args.n > 100 }};'
        f'@id("b") forbid({REFUND}) when {{ context.args has n && context.args.n like "x*" }};'
    )
    decision = decide(text, facts(arguments={"n": 1}))
    assert decision.verdict == "deny"
    assert "policies read n as integer and as text (b)" in decision.problem
    assert decide(text, facts("bank/balance", arguments={"n": 1})).verdict == "allow"


def test_a_policy_reads_the_labels_of_an_agent() -> None:
    text = f'@id("prod") forbid({ANY}) when {{ resource.labels.contains("env=prod") }};'
    for labels, verdict in (({"env": "prod"}, "deny"), ({"env": "test"}, "allow"), ({}, "allow")):
        resource = Resource.make("bank", "1", "home", "own_mesh", Skill("refund"), labels)
        assert decide(text, replace(facts(), resource=resource)).verdict == verdict


HAS = f'@id("has") forbid({ANY}) when {{ context.args has a && context.args has b }};'
INNER = f'@id("inner") forbid({ANY}) when {{ context.args has a.b && context.args.a.b == "x" }};'
TEXT = f'@id("text") forbid({ANY}) when {{ context.args has a && context.args.a == "x" }};'


@pytest.mark.parametrize("text", [HAS + INNER, INNER + HAS])
def test_one_policy_asks_for_an_argument_and_another_reads_below_it(text: str) -> None:
    for arguments, ids in [
        ({"a": {"b": "x"}}, ["inner"]),
        ({"a": {"b": "y"}}, []),
        ({"a": {"c": "x"}, "b": 1}, ["has"]),
        ({"a": {"b": "x"}, "b": 1}, ["has", "inner"]),
        ({"b": 1}, []),
        ({"a": None, "b": 1}, []),
    ]:
        decision = decide(text, facts(arguments=arguments))
        assert (decision.problem, [policy.id for policy in decision.policies]) == ("", ids)
        assert decision.verdict == ("deny" if ids else "allow")
    assert decide(text, facts(arguments={"a": "x"})).problem == "a is a text, not an object"


@pytest.mark.parametrize("text", [TEXT + INNER, INNER + TEXT])
def test_policies_that_read_an_argument_as_a_value_and_as_a_record_deny(text: str) -> None:
    decision = decide(text, facts(arguments={"a": {"b": "y"}}))
    assert decision.verdict == "deny"
    assert decision.problem.startswith("policies read a as text and a.b as text")
    watched = text.replace('"text")', '"text") @mode("watch")')
    decision = decide(watched, facts(arguments={"a": {"b": "y"}}))
    assert (decision.verdict, decision.problem) == ("allow", "")
    assert decision.would_be is not None
    assert decision.would_be.verdict == "deny"


def test_an_error_of_watched_policies_denies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = _Cut.decide

    def fail(cut: _Cut, *args: Any) -> Decision:
        if cut.arguments:
            raise TypeError("'bool' object does not support item assignment")
        return real(cut, *args)

    monkeypatch.setattr(_Cut, "decide", fail)
    decision = decide(HAS.replace('"has")', '"has") @mode("watch")'))
    assert decision.verdict == "allow"
    assert decision.would_be is not None
    assert decision.would_be.problem == "TypeError: 'bool' object does not support item assignment"


def test_an_unknown_origin_denies_only_where_a_policy_that_decides_reads_it() -> None:
    reads = f'@id("o") forbid({ANY}) when {{ context.origin == Retinue::Caller::"token:bob" }};'
    unknown = replace(facts(), origin="")
    decision = decide(reads, unknown)
    assert decision.verdict == "deny"
    assert "does not tell who began it" in decision.problem
    assert decide(reads, replace(facts(), origin="token:ann")).verdict == "allow"
    decision = decide(reads.replace('"o")', '"o") @mode("watch")') + TEXT, unknown)
    assert decision.verdict == "allow"
    assert decision.would_be is not None
    assert "does not tell who began it" in decision.would_be.problem


def test_a_watched_policy_decides_nothing_and_what_it_would_have_decided_is_told() -> None:
    watched = f'@id("w") @mode("watch") forbid({REFUND});'
    decision = decide(watched)
    assert decision.verdict == "allow"
    assert decision.would_be is not None
    assert (decision.would_be.verdict, decision.would_be.policies[0].id) == ("deny", "w")
    assert decide(watched, facts("bank/balance")).would_be is None
    assert decide(watched + DENY).would_be is None


@pytest.mark.parametrize(
    ("scope", "callers"),
    [
        ('principal in Retinue::Group::"guests"', ["token:guest-1", "anonymous"]),
        ('principal == Retinue::Caller::"local"', ["local"]),
        ("principal is Retinue::Agent", ["planner"]),
        ('principal == Retinue::Agent::"planner"', ["planner"]),
    ],
)
def test_callers_are_named_as_in_access_lists(scope: str, callers: list[str]) -> None:
    groups = {"guests": ["token:guest-*", "anonymous"]}
    text = f'@id("a") forbid({scope}, action, resource);'
    every = ["token:guest-1", "anonymous", "local", "planner", "token:ann", "jwt:x"]
    loaded = engine(text, groups)
    assert [one for one in every if loaded.decide(facts(caller=one)).verdict == "deny"] == callers


@pytest.mark.parametrize(
    ("scope", "when", "hit"),
    [
        ('resource == Retinue::Skill::"bank/refund"', "", True),
        ('resource in Retinue::Agent::"bank"', "", True),
        ('resource in Retinue::Tag::"money"', "", True),
        ('resource in Retinue::Source::"home"', "", True),
        ('resource in Retinue::Agent::"bank2"', "", False),
        ('resource in Retinue::Group::"canary"', "", True),
        ('resource is Retinue::Skill in Retinue::Group::"canary"', "", True),
        ('resource in Retinue::Group::"other"', "", False),
        ("resource", 'resource in Retinue::Group::"canary"', True),
        ("resource", 'resource.agent in Retinue::Group::"canary"', True),
        ("resource", 'resource.agent in Retinue::Group::"other"', False),
        ("resource is Retinue::Skill", "resource.read_only", True),
        ("resource", 'resource.agent == Retinue::Agent::"bank" && resource.version like "1.*"', True),
        ("resource", 'resource.trust == "own_mesh" && resource.visibility == "mesh"', True),
        ("resource", "resource.destructive || resource.runs_code || resource.open_world", False),
    ],
)
def test_skills_are_known_by_agent_tags_source_and_hints(scope: str, when: str, hit: bool) -> None:
    text = f'@id("a") forbid(principal, action in Retinue::Action::"use", {scope})'
    text += f" when {{ {when} }};" if when else ";"
    call = facts(hints=Hints(read_only=True), tags=("money",))
    groups = {"canary": ["ba*"], "other": ["token:*"]}
    for action in (CALL, LIST):
        decided = engine(text, groups).decide(replace(call, action=action, arguments=None))
        assert (decided.verdict == "deny") is hit


def test_ids_are_compared_in_one_unicode_form_and_cannot_be_composed() -> None:
    composed = f'@id("a") forbid({ANY}) when {{ resource in Retinue::Agent::"caf\u00e9" }};'
    assert decide(composed, facts("cafe\u0301/x")).verdict == "deny"
    assert decide(composed, facts("cafe/x")).verdict == "allow"
    slash = Resource.make("a/b", None, "s", "imported", Skill("c"))
    assert slash.id != Resource.make("a", None, "s", "imported", Skill("b/c")).id
    quoted = Resource.make('x"::"y', None, 's"', "imported", Skill('"; permit(principal, action, resource);'))
    call = CallFacts(Caller.of(replace(ANN, id='token:"')), quoted)
    assert engine(f'@id("a") forbid({ANY}) when {{ resource.read_only }};').decide(call).verdict == "allow"


@pytest.mark.parametrize("broken", [{"caller": "jwt:\ud800"}, {"skill": "\ud800/refund"}])
def test_a_name_that_is_no_unicode_text_denies_where_policies_decide(broken: dict[str, Any]) -> None:
    rule = '@id("a") {}forbid(principal, action, resource) when {{ resource.destructive }};'
    decision = decide(rule.format(""), facts(**broken))
    assert (decision.verdict, "no Unicode text" in decision.problem) == ("deny", True)
    watched = decide(rule.format('@mode("watch") '), facts(**broken))
    assert watched.verdict == "allow"
    assert watched.would_be is not None
    assert watched.would_be.verdict == "deny"


def test_an_agent_that_calls_itself_is_one_entity() -> None:
    text = f'@id("a") forbid({ANY}) when {{ principal == resource.agent }};'
    assert decide(text, facts(caller="bank")).verdict == "deny"
    assert name_principal("bank").type == "Retinue::Agent"


@pytest.mark.parametrize("now", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_case_at_a_time_that_utc_does_not_have_is_refused(now: str) -> None:
    with pytest.raises(InvalidSettingError, match=r"^c\.yaml: case 1: now: .* the year in UTC"):
        parse_cases("c.yaml", [{"call": "bank/pay", "expect": "allow", "now": now}])


def test_a_panic_of_the_engine_denies(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        pass

    def panic(*_: object) -> None:
        raise PanicException("index out of bounds")

    made = engine(PERMIT)
    monkeypatch.setattr(cedarpy, "is_authorized", panic)
    decided = made.decide(facts())
    assert (decided.verdict, decided.problem) == (
        "deny",
        "the engine of policies failed: index out of bounds",
    )
