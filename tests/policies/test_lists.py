"""What is in lists is decided as the engine decides it, with few evaluations."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.core.call import Principal
from retinue.core.record import AgentRecord, Hints, Item, Listing, Prompt, Resource, Skill
from retinue.core.trust import Trust
from retinue.mesh import slices
from retinue.mesh.permissions import AgentView, decide_listings, narrow_record
from retinue.policies import entities
from retinue.policies.decision import CallFacts, Decision, Engine
from retinue.policies.entities import LIST, Caller
from retinue.policies.gate import ListedItems
from retinue.policies.lists import ListDecisions
from retinue.policies.policy_set import Default, Policy, load_policies

CALLERS = [
    Caller.of(Principal(name, "token", frozenset({"mesh"}))) for name in ("token:ann", "token:bob", "a")
]
AGENTS = [
    Listing(AgentRecord(name, version=version), "home", name, source_trust=trust)
    for name, version, trust in (
        ("a", "1.0.0", Trust.OWN_MESH),
        ("a", "2.0.0", Trust.OWN_MESH),
        ("b/c", "1.0.0", Trust.IMPORTED),
    )
]
ITEMS: list[Item] = [
    Skill("x", hints=Hints(read_only=True), tags=("t",)),
    Skill("x", hints=Hints(destructive=True), visibility="exposed"),
    Skill("é"),
    Resource("x", "x"),
    Resource("notes://y", "y"),
    Prompt("x"),
]
GROUPS = {"g": ["token:ann", "a"], "h": ["b*"]}

principals = st.sampled_from(
    [
        "principal",
        'principal == Retinue::Caller::"token:ann"',
        'principal == Retinue::Agent::"a"',
        'principal in Retinue::Group::"g"',
        "principal is Retinue::Agent",
        'principal is Retinue::Caller in Retinue::Group::"g"',
    ]
)
resources = st.sampled_from(
    [
        "resource",
        'resource in Retinue::Agent::"a"',
        'resource == Retinue::Skill::"a/x"',
        'resource in Retinue::Skill::"a/é"',
        'resource == Retinue::Resource::"b%2Fc/notes://y"',
        'resource == Retinue::Prompt::"a/x"',
        'resource in Retinue::Group::"h"',
        'resource in Retinue::Tag::"t"',
        'resource in Retinue::Source::"home"',
        "resource is Retinue::Prompt",
        'resource is Retinue::Skill in Retinue::Agent::"a"',
    ]
)
conditions = st.sampled_from(
    [
        "",
        "when { resource.read_only }",
        "unless { resource.open_world || resource.destructive }",
        'when { resource.name like "*x*" }',
        'when { resource.version == "2.0.0" && resource.visibility == "mesh" }',
        'when { resource.trust == "imported" }',
        'when { resource.agent == Retinue::Agent::"a" }',
        'unless { resource in Retinue::Tag::"t" }',
        'when { principal.name == "token:bob" }',
    ]
)
actions = st.sampled_from(['action in Retinue::Action::"use"', 'action == Retinue::Action::"list"'])
effects = st.sampled_from(["forbid", "permit", '@effect("approve") forbid', '@mode("watch") forbid'])
policies = st.lists(st.tuples(effects, principals, actions, resources, conditions), min_size=1, max_size=4)


def load(rows: list[tuple[str, str, str, str, str]], default: Default) -> Engine:
    text = "".join(
        f'@id("{number}") {effect}({principal}, {action}, {resource}) {condition};'
        for number, (effect, principal, action, resource, condition) in enumerate(rows)
    )
    return Engine(load_policies({"p.cedar": text}, default=default, groups=GROUPS))


@settings(max_examples=80, deadline=None)
@given(policies, st.sampled_from(["allow", "deny"]))
def test_a_list_has_what_the_engine_does_not_deny(
    rows: list[tuple[str, str, str, str, str]], default: Default
) -> None:
    engine = load(rows, default)
    lists = ListDecisions(engine)
    for caller in CALLERS:
        for agent in AGENTS:
            for item in ITEMS:
                facts = CallFacts(caller, entities.Resource.of(agent, item), LIST)
                expected = engine.decide(facts).verdict != "deny"
                assert lists.decide(caller, agent, item) is expected, (caller, agent, item)


class CountedEngine(Engine):
    """Counts its evaluations."""

    evaluations = 0

    def decide_by(self, policies: Sequence[Policy], facts: CallFacts, *, permits: bool) -> Decision:
        self.evaluations += 1
        return super().decide_by(policies, facts, permits=permits)


def test_a_list_of_a_thousand_tools_takes_few_evaluations() -> None:
    rules = [
        '@id("reading") forbid(principal, action, resource) unless { resource.read_only };',
        *(
            f'@id("s{number}") forbid(principal, action, resource == Retinue::Skill::"a/s{number}");'
            for number in range(0, 1000, 10)
        ),
    ]
    engine = CountedEngine(load_policies({"p.cedar": "".join(rules)}))
    lists = ListDecisions(engine)
    skills = [Skill(f"s{number}", hints=Hints(read_only=number % 2 == 0)) for number in range(1000)]
    shown = [skill.id for skill in skills if lists.decide(CALLERS[1], AGENTS[0], skill)]
    assert len(shown) == 400
    assert engine.evaluations == 2
    assert [lists.decide(CALLERS[1], AGENTS[0], skill) for skill in skills].count(True) == 400
    assert engine.evaluations == 2


async def test_others_run_between_the_decisions_about_a_list_which_keeps_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = [
        f'@id("p{n}") forbid(principal, action == Retinue::Action::"list", '
        f'resource == Retinue::Skill::"a/s{n}") when {{ {condition} }};'
        for n in range(20)
        for condition in [f'resource.version == "{n}"' if n % 2 else f'resource == Retinue::Skill::"a/s{n}"']
    ]
    engine, asked = Engine(load_policies({"p.cedar": "\n".join(texts)})), list[str]()
    decisions = ListDecisions(engine)
    ask = ListDecisions._ask

    def note(self: ListDecisions, caller: Caller, agent: Listing, item: Item, *more: Any) -> bool:
        asked.append(str(item))
        return ask(self, caller, agent, item, *more)

    monkeypatch.setattr(ListDecisions, "_ask", note)
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    agent = Listing(
        AgentRecord("a", version="1", skills=tuple(Skill(f"s{n}") for n in range(20))), "home", "a"
    )
    view = AgentView(frozenset(), (), ListedItems((CALLERS[0],), decisions))
    seen_by_others: list[int] = []

    async def look() -> None:
        while len(asked) < 20:
            seen_by_others.append(len(asked))
            await asyncio.sleep(0)

    await asyncio.gather(decide_listings(view, [agent]), look())
    assert len(seen_by_others) >= 15
    shown = narrow_record(view, agent, agent.record).skills
    assert [skill.id for skill in shown] == [f"s{n}" for n in range(1, 20, 2) if n != 1]
    assert len(asked) == 20
