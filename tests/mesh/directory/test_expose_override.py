"""``hub.expose`` and ``hints``: what the owner says about skills of others, and no other skills."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retinue.cards.pallet_card import encode_card, render_card
from retinue.core.record import AgentRecord, Hints, Listing, Skill
from retinue.mesh.directory.overrides import ExposeOverride, HintsOverride
from retinue.mesh.entry import entry_of
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


def test_hints_of_the_owner_replace_those_of_the_card_hint_by_hint() -> None:
    skill = Skill("drop", hints=Hints(read_only=True, idempotent=True))
    listing = Listing(AgentRecord("db", skills=(skill, Skill("read"))), "home", "agents/db", raw=b"{}")
    override = HintsOverride(
        {"db/*": {"open_world": True}, "db/drop": {"read_only": False, "destructive": True}, "x/*": {}}
    )
    drop, read = override.apply(listing).record.skills
    assert drop.hints == Hints(destructive=True, idempotent=True, open_world=True)
    assert read.hints == Hints(open_world=True)
    assert override.concerns(entry_of(listing))
    other = replace(listing, record=replace(listing.record, name="files"))
    assert override.apply(other) is other
    assert not override.concerns(entry_of(other))
