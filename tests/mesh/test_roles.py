"""Who has a role, by which skill, and who is asked first (SPEC 7, seed 002)."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.core.errors import RoleNotOfferedError, UnknownAgentError, UnknownRoleError
from retinue.core.record import AgentRecord, Endpoint, Listing, Skill
from retinue.mesh.roles import find_role_skill, list_offers, parse_role
from retinue.workflows.role_choice import RoleChoice

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


class Agents:
    def __init__(self, *listings: Listing) -> None:
        self._listings = listings
        self.refreshed = 0

    async def ensure_fresh(self) -> None:
        self.refreshed += 1

    def list_all(self) -> tuple[Listing, ...]:
        return self._listings


async def test_agents_are_listed_for_a_role_with_all_that_a_run_must_know() -> None:
    schema = {"type": "object"}
    agents = Agents(
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
    with pytest.raises(UnknownAgentError, match="Unknown agent: aa"):
        await choice.list_role("execute", ("aa",), MESH)
    with pytest.raises(RoleNotOfferedError, match="Agent a is not one that has the role plan"):
        await choice.list_role("plan", ("a",), MESH)
    with pytest.raises(RoleNotOfferedError, match="No available agent has the role review"):
        await choice.list_role("review", (), MESH)


async def test_two_agents_of_one_name_are_told_apart_by_their_source() -> None:
    agents = Agents(listing("a", skill("do", "execute")), listing("a", skill("do", "execute"), source="far"))
    found = await RoleChoice(agents).list_role("execute", (), MESH)
    assert [one.agent for one in found] == ["a@home", "a@far"]
