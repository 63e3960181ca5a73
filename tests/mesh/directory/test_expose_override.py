"""``hub.expose``: skills of foreign agents that MCP clients see, and no others."""

from __future__ import annotations

import pytest

from retinue.cards.pallet_card import encode_card, render_card
from retinue.core.record import AgentRecord, Listing, Skill
from retinue.mesh.directory.listing_cache import ExposeOverride
from retinue.mesh.permissions import is_exposed_here

SKILLS = (Skill("fs:read"), Skill("say"), Skill("own", visibility="exposed"))


def _listing(raw: bytes = b"{}") -> Listing:
    return Listing(AgentRecord("one", skills=SKILLS), "home", "agents/one", raw=raw)


@pytest.mark.parametrize(
    ("globs", "named"),
    [
        ((), []),
        (("one__*",), ["fs:read", "say"]),
        (("one__fs:*",), ["fs:read"]),
        (("two__*", "say"), []),
        (("*__say",), ["say"]),
    ],
)
def test_a_glob_names_agent_and_skill(globs: tuple[str, ...], named: list[str]) -> None:
    """What was exposed already is exposed by its author."""
    skills = ExposeOverride(globs).apply(_listing()).record.skills
    assert [skill.id for skill in skills if is_exposed_here(skill)] == named
    assert {skill.id for skill in skills if skill.visibility == "exposed"} == {"own", *named}


def test_a_card_that_speaks_for_itself_is_left_alone() -> None:
    """It has a ``retinue`` block."""
    raw = encode_card(render_card(AgentRecord("one", skills=SKILLS), scopes=frozenset({"mesh", "exposed"})))
    listing = _listing(raw)
    assert ExposeOverride(("*",)).apply(listing) is listing


def test_what_the_hub_says_of_a_skill_is_on_no_card() -> None:
    """Only its visibility is, for whoever asks this hub."""
    card = render_card(ExposeOverride(("*",)).apply(_listing()).record, scopes=frozenset({"mesh", "exposed"}))
    assert b"exposed_here" not in encode_card(card)
