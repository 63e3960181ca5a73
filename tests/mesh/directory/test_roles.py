"""Who has a role, by which skill, and who is asked first (specification 7.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import RoleNotOfferedError, UnknownAgentError, UnknownRoleError
from retinue.core.record import AgentRecord, Endpoint, Listing, Skill
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.directory.routing import find_role_skill, list_offers, parse_role
from retinue.mesh.entry import Entry
from retinue.workflows.dispatch_caller import RoleChoice

MESH = frozenset({"mesh", "exposed"})


def listing(name: str, *skills: Skill, **facts: Any) -> Listing:
    scores = facts.pop("scores", None)
    record = AgentRecord(
        name, endpoints=(Endpoint("execute", f"http://{name}"),), skills=skills, scores=scores
    )
    return Listing(record, facts.pop("source", "home"), name, **facts)


def skill(skill_id: str, *roles: str, **facts: Any) -> Skill:
    return Skill(skill_id, roles=roles, **facts)


@pytest.mark.parametrize(
    ("text", "role"),
    [("plan", "plan"), ("planning", "plan"), ("execution", "execute"), ("review", "review")],
)
def test_a_role_has_two_names(text: str, role: str) -> None:
    assert parse_role(text) == role


def test_an_unknown_role_is_refused_with_the_list() -> None:
    with pytest.raises(UnknownRoleError) as caught:
        parse_role("cook")
    assert caught.value.remedy == "there are: plan, execute, review"


def test_a_skill_gives_the_role_by_its_id_before_one_that_names_it() -> None:
    agent = listing("a", skill("first", "review"), skill("review"))
    found = find_role_skill(agent.record, "review", MESH)
    assert found is not None
    assert found.id == "review"


def test_a_hidden_skill_gives_no_role() -> None:
    agent = listing("a", skill("secret", "plan", visibility="private"))
    assert find_role_skill(agent.record, "plan", MESH) is None


def test_health_goes_before_score_and_score_before_order() -> None:
    def having(name: str, score: float | None, **facts: Any) -> Listing:
        scores = None if score is None else {"execution": score, "planning": 1.0}
        return listing(name, skill("do", "execute"), scores=scores, **facts)

    agents = [
        having("unscored", None),
        having("weak", 0.2),
        having("good", 0.9),
        having("gone", 1.0, reachable=False),
        having("equal", 0.9),
        having("shaky", 1.0, reachable=True, last_error="slow"),
        listing("other", skill("do", "plan"), scores={"execution": 1.0}),
    ]
    offers = list_offers(agents, "execute", MESH)
    assert [offer.listing.record.name for offer in offers] == [
        "good",
        "equal",
        "weak",
        "unscored",
        "shaky",
        "gone",
    ]
    assert [offer.is_available for offer in offers] == [True] * 5 + [False]
    assert [offer.score for offer in offers[:4]] == [0.9, 0.9, 0.2, None]


class Counting(Directory):
    """Says whose cards were read."""

    def __init__(self, *listings: Listing) -> None:
        super().__init__(MemoryListings())
        self.opened: list[str] = []
        self.refreshed = 0
        for one in listings:
            self.upsert(one)

    async def ensure_fresh(self, *, for_call: bool = False) -> None:
        self.refreshed += 1

    def open_all(self, entries: Sequence[Entry]) -> list[Listing]:
        self.opened += [one.name for one in entries]
        return super().open_all(entries)

    def list_all(self) -> tuple[Listing, ...]:
        raise AssertionError("nobody needs every card")


async def test_agents_are_listed_for_a_role_with_all_that_a_run_must_know() -> None:
    schema = {"type": "object"}
    agents = Counting(
        listing("a", skill("do", "execute", input_schema=schema), scores={"execution": 0.5}),
        listing("b", skill("do", "execute"), reachable=False),
        listing("off", skill("do", "execute"), enabled=False),
    )
    choice = RoleChoice(agents)
    (found,) = await choice.list_role("execution", (), MESH)
    assert (found.agent, found.skill, found.url, found.score) == ("a", "do", "http://a", 0.5)
    assert found.input_schema == schema
    assert agents.refreshed == 1
    named = await choice.list_role("execute", ("b", "a"), MESH)
    assert [(one.agent, one.available) for one in named] == [("b", False), ("a", True)]
    with pytest.raises(UnknownAgentError, match="Unknown agent: of") as unknown:
        await choice.list_role("execute", ("of",), MESH)
    assert unknown.value.near == ("off",)
    with pytest.raises(RoleNotOfferedError, match="Agent a does not have the role plan"):
        await choice.list_role("plan", ("a",), MESH)
    with pytest.raises(RoleNotOfferedError, match="No available agent has the role review"):
        await choice.list_role("review", (), MESH)


async def test_two_agents_of_one_name_are_told_apart_by_their_source() -> None:
    far = listing("a", skill("do", "execute"), source="far")
    elsewhere = replace(far, record=replace(far.record, endpoints=()))
    agents = Counting(listing("a", skill("do", "execute")), elsewhere)
    found = await RoleChoice(agents).list_role("execute", (), MESH)
    assert [one.agent for one in found] == ["a@far", "a@home"]
    for name in ("a@home", "a@far"):
        (one,) = await RoleChoice(agents).list_role("execute", (name,), MESH)
        assert one.agent == name
        with pytest.raises(RoleNotOfferedError):
            await RoleChoice(agents).list_role("plan", (name,), MESH)
    with pytest.raises(UnknownAgentError):
        await RoleChoice(agents).list_role("plan", ("a@near",), MESH)


async def test_only_the_cards_of_those_that_have_the_role_are_read() -> None:
    agents = Counting(
        *[listing(f"other-{n}", skill(f"s{n}", "plan")) for n in range(300)],
        listing("by-name", skill("do", "review", "plan")),
        listing("by-id", skill("review")),
        listing("hidden", skill("review", visibility="private")),
        *[listing(f"many-{n}", skill("execute")) for n in range(450)],
    )
    found = await RoleChoice(agents).list_role("review", (), MESH)
    assert [one.agent for one in found] == ["by-id", "by-name"]
    with pytest.raises(RoleNotOfferedError):
        await RoleChoice(agents).list_role("review", ("other-7",), MESH)
    with pytest.raises(UnknownAgentError):
        await RoleChoice(agents).list_role("review", ("nobody",), MESH)
    assert agents.opened == ["by-id", "by-name"] * 3
    assert len(await RoleChoice(agents).list_role("execute", (), MESH)) == 450


NAMES = st.sampled_from(["a", "b", "c"])
SKILLS = st.lists(
    st.builds(
        Skill,
        st.sampled_from(["plan", "review", "do"]),
        visibility=st.sampled_from(["private", "mesh", "exposed"]),
        roles=st.lists(st.sampled_from(["plan", "review"]), max_size=2).map(tuple),
    ),
    max_size=3,
    unique_by=lambda one: one.id,
).map(tuple)


@st.composite
def held(draw: st.DrawFn) -> Listing:
    record = AgentRecord(
        draw(NAMES),
        endpoints=(Endpoint("execute", f"http://{draw(NAMES)}"),),
        skills=draw(SKILLS),
        scores={"planning": draw(st.sampled_from([0.1, 0.9]))},
    )
    source = draw(st.sampled_from(["home", "far"]))
    return Listing(record, source, draw(NAMES), reachable=draw(st.sampled_from([None, True, False])))


@given(st.lists(held(), max_size=8))
async def test_the_offers_are_those_of_the_whole_list(listings: list[Listing]) -> None:
    agents = Directory(MemoryListings())
    for one in listings:
        agents.upsert(one)
    for role in ("plan", "review"):
        for scopes in (MESH, frozenset({"mesh"}), frozenset({"exposed"})):
            whole = list_offers(agents.list_all(), role, scopes)
            assert list_offers(agents.open_all(agents.list_with_role(role, scopes)), role, scopes) == whole
