"""Roles: which agents plan, execute and review, and who of them does it best (SPEC 7, seed 002).

An agent has a role when one visible skill has that id or names it in ``roles``. Scores only rank;
whoever has none stands behind those that have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from retinue.core.errors import UnknownRoleError
from retinue.core.record import AgentRecord, Listing, Skill
from retinue.mesh.health import tier_of
from retinue.mesh.routing import Strategy, first, order_candidates
from retinue.mesh.visibility import is_visible

CAPABILITIES: Mapping[str, str] = {"plan": "planning", "execute": "execution", "review": "review"}
"""Role → the capability whose score ranks it (SPEC 3, doubt 7)."""

UNREACHABLE_TIER = 2

_BY_CAPABILITY = {capability: role for role, capability in CAPABILITIES.items()}


@dataclass(frozen=True, slots=True)
class RoleOffer:
    """An agent that has a role, the skill it is called by, and its configured score."""

    listing: Listing
    skill: Skill
    score: float | None

    @property
    def is_available(self) -> bool:
        return self.listing.enabled and tier_of(self.listing) < UNREACHABLE_TIER


def parse_role(text: str) -> str:
    """plan, execute or review; planning and execution mean the same. Raises UnknownRoleError."""
    role = _BY_CAPABILITY.get(text, text)
    if role not in CAPABILITIES:
        raise UnknownRoleError(text, tuple(CAPABILITIES))
    return role


def find_role_skill(record: AgentRecord, role: str, scopes: frozenset[str]) -> Skill | None:
    """The visible skill that gives an agent the role: the one of that id, else the first that names it."""
    visible = [skill for skill in record.skills if is_visible(skill, scopes)]
    by_id = next((skill for skill in visible if skill.id == role), None)
    return by_id or next((skill for skill in visible if role in skill.roles), None)


def list_offers(
    listings: Iterable[Listing], role: str, scopes: frozenset[str], strategy: Strategy = first
) -> tuple[RoleOffer, ...]:
    """Everybody who has the role: the healthy before the degraded before the unreachable, then by score.

    Among equals the strategy decides, which knows what was learned of them.
    """
    candidates = [one for one in listings if find_role_skill(one.record, role, scopes) is not None]
    ordered: Sequence[Listing] = sorted(candidates, key=tier_of)
    offers: list[RoleOffer] = []
    for listing in order_candidates(ordered, strategy, role):
        skill = find_role_skill(listing.record, role, scopes)
        if skill is not None:
            scores = listing.record.scores or {}
            offers.append(RoleOffer(listing, skill, scores.get(CAPABILITIES[role])))
    offers.sort(key=lambda offer: (tier_of(offer.listing), -(offer.score or 0.0)))
    return tuple(offers)
