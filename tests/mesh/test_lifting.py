"""``hub.expose``: skills of foreign agents that MCP clients see, and no others."""

from __future__ import annotations

import pytest

from retinue.core.record import AgentRecord, Listing, Skill
from retinue.mesh.lifting import is_lifted, lift
from retinue.protocols.pallet_card import encode_card, render_card

SKILLS = (Skill("fs:read"), Skill("say"), Skill("own", visibility="exposed"))


def _listing(raw: bytes = b"{}") -> Listing:
    return Listing(AgentRecord("one", skills=SKILLS), "home", "agents/one", raw=raw)


@pytest.mark.parametrize(
    ("globs", "lifted"),
    [
        ((), []),
        (("one__*",), ["fs:read", "say"]),
        (("one__fs:*",), ["fs:read"]),
        (("two__*", "say"), []),
        (("*__say",), ["say"]),
    ],
)
def test_a_glob_names_agent_and_skill(globs: tuple[str, ...], lifted: list[str]) -> None:
    """What was exposed already is exposed by its author."""
    skills = lift(_listing(), globs).record.skills
    assert [skill.id for skill in skills if is_lifted(skill)] == lifted
    assert {skill.id for skill in skills if skill.visibility == "exposed"} == {"own", *lifted}


def test_a_card_that_speaks_for_itself_is_left_alone() -> None:
    """It has a ``retinue`` block."""
    raw = encode_card(render_card(AgentRecord("one", skills=SKILLS), scopes=frozenset({"mesh", "exposed"})))
    listing = _listing(raw)
    assert lift(listing, ("*",)) is listing


def test_what_the_hub_says_of_a_skill_is_on_no_card() -> None:
    """Only its visibility is, for whoever asks this hub."""
    card = render_card(lift(_listing(), ("*",)).record, scopes=frozenset({"mesh", "exposed"}))
    assert b"lifted" not in encode_card(card)
