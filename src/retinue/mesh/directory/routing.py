"""Chooses the agents that may take a call, orders them, and builds the errors of failed look-ups.

The directory lists the agents that offer a skill, in its order. Here they are filtered by what a call asks
for, and ordered by health and by a strategy. Workflows and endpoints share this.

An agent has a role (plan, execute, review) when a visible skill has that id or names it in ``roles``
(specification 7.3). Scores only rank: agents without a score rank last.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from retinue.core.errors import (
    LookupFailedError,
    SkillNotOfferedError,
    UnknownAgentError,
    UnknownRoleError,
    UnknownSkillError,
    VersionConflictError,
)
from retinue.core.record import AgentRecord, Candidate, Listing, ListingKey, Skill, is_visible
from retinue.core.text import suggest
from retinue.core.trust import Trust
from retinue.mesh.directory.choice import choice_order, list_groups
from retinue.mesh.directory.listing_index import ListingIndex
from retinue.mesh.directory.versions import (
    folder_of,
    is_version_named,
    mark_standby,
    parse_version_range,
    share_by_weight,
)
from retinue.mesh.entry import Entry, Scopes
from retinue.mesh.health.agent_stats import AgentStatsTable
from retinue.mesh.health.breaker import UNREACHABLE_TIER, health_tier
from retinue.mesh.observing.call_figures import TrackRecord
from retinue.mesh.permissions import AgentView, is_seen

C = TypeVar("C", bound=Candidate)

StrategyName = Literal["best", "first", "round-robin", "random", "least-connections"]
"""The values of the setting ``routing.strategy``."""

CAPABILITIES: Mapping[str, str] = {"plan": "planning", "execute": "execution", "review": "review"}
"""Role → the capability whose score ranks it (specification 3, doubt 7)."""

MANY = 64
"""Above this number of agents, a call does not look at each of them."""

_FULL_WEIGHT = 100

_COMPARED = 8
"""Up to this number, `Best` compares all agents; above it, the first one and two others."""

_BY_CAPABILITY = {capability: role for role, capability in CAPABILITIES.items()}


class Strategy(Protocol):
    """Orders the equally healthy candidates of one call, best first; the result has the same candidates."""

    def __call__(self, candidates: Sequence[C], skill_id: str) -> Sequence[C]: ...


def first(candidates: Sequence[C], skill_id: str) -> Sequence[C]:
    """Keep the directory's order: the same call goes to the same agent (specification 2, doubt 8)."""
    return candidates


class RoundRobin:
    """Each call of a skill starts at the next agent."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def __call__(self, candidates: Sequence[C], skill_id: str) -> Sequence[C]:
        turn = self._turns.get(skill_id, 0)
        self._turns[skill_id] = turn + 1
        start = turn % len(candidates)
        return [*candidates[start:], *candidates[:start]]


class Random:
    """A random order, which ``seed`` makes repeatable."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)

    def __call__(self, candidates: Sequence[C], skill_id: str) -> Sequence[C]:
        return self._random.sample(candidates, len(candidates))


class LeastConnections:
    """The agent with the fewest calls in flight first; the directory's order among equals."""

    def __init__(self, agent_stats: AgentStatsTable) -> None:
        self._agent_stats = agent_stats

    def __call__(self, candidates: Sequence[C], skill_id: str) -> Sequence[C]:
        return sorted(candidates, key=lambda candidate: self._agent_stats.of(candidate).in_flight)


class Best:
    """The agent with the shortest expected wait first: latency × calls in flight, increased by failures.

    New agents are tried. Equal agents keep the directory's order, so that the first call goes to the first
    agent. Among many agents it compares the first one and two random ones, which balances nearly as well as
    comparing all (the power of two choices) at a cost that does not grow with their number.
    """

    def __init__(self, agent_stats: AgentStatsTable, seed: int | None = None) -> None:
        self._agent_stats = agent_stats
        self._random = random.Random(seed)

    def __call__(self, candidates: Sequence[C], skill_id: str) -> Sequence[C]:
        agent_stats = self._agent_stats
        if len(candidates) <= _COMPARED:
            return sorted(candidates, key=lambda candidate: agent_stats.of(candidate).cost(skill_id))
        drawn = {0, *self._random.sample(range(1, len(candidates)), 2)}
        places = sorted(drawn, key=lambda place: (agent_stats.of(candidates[place]).cost(skill_id), place))
        ordered = [candidates[place] for place in places]
        start = 0
        for place in sorted(drawn):
            ordered += candidates[start:place]
            start = place + 1
        return [*ordered, *candidates[start:]]


def make_strategy(name: StrategyName, agent_stats: AgentStatsTable, *, seed: int | None = None) -> Strategy:
    """The strategy of this name, over the statistics that the dispatcher keeps in ``agent_stats``."""
    strategies: Mapping[StrategyName, Strategy] = {
        "best": Best(agent_stats, seed),
        "first": first,
        "round-robin": RoundRobin(),
        "random": Random(seed),
        "least-connections": LeastConnections(agent_stats),
    }
    return strategies[name]


def visible_candidates(view: AgentView | None, candidates: tuple[C, ...]) -> tuple[C, ...]:
    """The candidates within a view, in their order; the same tuple without a view."""
    return (
        candidates if view is None else tuple(candidate for candidate in candidates if view(candidate.name))
    )


def select_candidates(
    listings: Sequence[C],
    *,
    agent: str | None = None,
    version_range: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> tuple[C, ...]:
    """The enabled listings with this name, a version in the range, and these labels.

    ``agent`` is a name or ``name@source``. Each label must have its value, or any value for ``*``. Raises
    InvalidSettingError for an invalid range.
    """
    wanted = parse_version_range(version_range) if version_range is not None else None
    return tuple(
        listing
        for listing in listings
        if listing.enabled
        and (agent is None or is_named(listing, agent))
        and (wanted is None or wanted.fits(listing.version))
        and (not labels or has_labels(listing, labels))
    )


def select_versions(
    entries: Sequence[Entry], *, agent: str | None, version_range: str | None
) -> tuple[Entry, ...]:
    """As `select_candidates`, with a new choice among the versions of each agent, best first."""
    chosen = select_candidates(entries, agent=agent, version_range=version_range)
    if len(chosen) < len(entries) and any(entry.standby for entry in chosen):
        return tuple(sorted(mark_standby(chosen), key=choice_order))
    return chosen


def is_named(listing: Candidate, agent: str) -> bool:
    """Whether ``agent`` is the listing's name, alone or with its source, team or version (``name@1``)."""
    name = listing.name
    if agent == name:
        return True
    mark = agent[len(name) + 1 :] if agent.startswith(f"{name}@") else ""
    return bool(mark) and (
        mark in (listing.source, folder_of(listing.id)) or is_version_named(listing.version, mark)
    )


def has_labels(listing: Candidate, labels: Mapping[str, str]) -> bool:
    """Whether the agent has all of ``labels``; the value ``*`` matches any."""
    own = listing.labels
    return all(key in own and value in ("*", own[key]) for key, value in labels.items())


def order_candidates(listings: Sequence[C], strategy: Strategy = first, skill_id: str = "") -> tuple[C, ...]:
    """The order in which to try ``listings``: that of `choice_order`.

    The strategy orders each group of equal agents, except older versions, deprecated and unreachable agents.
    Unreachable agents are kept, because they may be back, and perhaps no other agent offers the skill. More
    than ``MANY`` listings must come in the directory's order. The first one shares its calls by its weight.
    """
    if len(listings) < 2:
        return tuple(listings)
    if len(listings) <= MANY:
        listings = sorted(listings, key=choice_order)
    ordered: list[C] = []
    for order, group in list_groups(listings):
        is_live = not (order.is_standby or order.is_unreachable)
        ordered += strategy(group, skill_id) if is_live and len(group) > 1 else group
    if ordered[0].weight < _FULL_WEIGHT:
        return tuple(share_by_weight(ordered, random.random))
    return tuple(ordered)


@dataclass(frozen=True, slots=True)
class RoleOffer:
    """An agent with a role, the skill that fulfils it, and its configured score."""

    listing: Listing
    skill: Skill
    score: float | None
    is_busy: bool = False

    @property
    def is_available(self) -> bool:
        return self.listing.enabled and health_tier(self.listing) < UNREACHABLE_TIER


def parse_role(text: str) -> str:
    """``plan``, ``execute`` or ``review``, from that or from its capability. Raises UnknownRoleError."""
    role = _BY_CAPABILITY.get(text, text)
    if role not in CAPABILITIES:
        raise UnknownRoleError(text, tuple(CAPABILITIES))
    return role


def find_role_skill(record: AgentRecord, role: str, scopes: frozenset[str]) -> Skill | None:
    """The visible skill that fulfils the role: the one with that id, otherwise the first that names it."""
    visible = [skill for skill in record.skills if is_visible(skill.visibility, scopes)]
    by_id = next((skill for skill in visible if skill.id == role), None)
    return by_id or next((skill for skill in visible if role in skill.roles), None)


def list_offers(
    listings: Iterable[Listing],
    role: str,
    scopes: frozenset[str],
    strategy: Strategy = first,
    track: TrackRecord | None = None,
) -> tuple[RoleOffer, ...]:
    """The agents with the role: available ▸ trust ▸ healthy, then by score, then by the strategy.

    With a ``track`` record busy agents come after others, and scores are weighed by what was learned.
    """
    candidates = [
        listing for listing in listings if find_role_skill(listing.record, role, scopes) is not None
    ]
    ordered: Sequence[Listing] = sorted(candidates, key=choice_order)
    offers: list[RoleOffer] = []
    for listing in order_candidates(ordered, strategy, role):
        skill = find_role_skill(listing.record, role, scopes)
        if skill is not None:
            scores = listing.record.scores or {}
            is_busy = track is not None and track.is_busy(listing)
            offers.append(RoleOffer(listing, skill, scores.get(CAPABILITIES[role]), is_busy))

    def rank(offer: RoleOffer) -> tuple[bool, Trust, int, bool, float]:
        order = choice_order(offer.listing)
        weight = (offer.score or 0.0) if track is None else track.weigh(offer.listing, offer.score)
        return order.is_unreachable, order.trust, health_tier(offer.listing), offer.is_busy, -weight

    offers.sort(key=rank)
    return tuple(offers)


_SCORED = 16
"""Up to this number of agents, those that offer a skill with a role are compared by their scores."""


def rank_by_score(
    ordered: Sequence[Candidate],
    open_listing: Callable[[Candidate], Listing | None],
    skill_id: str,
    track: TrackRecord | None = None,
) -> Sequence[Candidate]:
    """The candidates of one skill, those at the top with the highest scores first.

    The score is that of the roles of the skill; without roles the order stays as it is. Only candidates as
    trusted and as healthy as the first one are compared, and versions of an agent keep their order.
    """
    if not 1 < len(ordered) <= _SCORED or ordered[0].standby:
        return ordered
    best = choice_order(ordered[0])
    top = [candidate for candidate in ordered if choice_order(candidate) == best]
    scores: dict[ListingKey, float] = {}
    for candidate in top:
        listing = open_listing(candidate)
        skill = None if listing is None else listing.record.find_skill(skill_id)
        if listing is None or skill is None:
            continue
        roles = {role for role in (*skill.roles, skill.id) if role in CAPABILITIES}
        role_scores = [(listing.record.scores or {}).get(CAPABILITIES[role], 0.0) for role in roles]
        if role_scores:
            score = max(role_scores)
            scores[candidate.id] = score if track is None else track.weigh(candidate, score)
    if not any(scores.values()):
        return ordered
    top.sort(
        key=lambda candidate: (track is not None and track.is_busy(candidate), -scores.get(candidate.id, 0.0))
    )
    return [*top, *(candidate for candidate in ordered if candidate not in top)]


def not_found_error(
    index: ListingIndex,
    skill_id: str,
    scopes: Scopes,
    *,
    version_range: str | None,
    agent: str | None,
    view: AgentView | None,
    unasked: Sequence[str],
) -> LookupFailedError:
    """The error of a look-up that found no agent; ``unasked`` names the sources that could not be read.

    It mentions nothing outside the caller's scopes and view, also among the similar names.
    """
    offering = select_candidates(visible_candidates(view, index.list_offering(skill_id, scopes)), agent=agent)
    if offering:
        versions = [a.version or "none" for a in offering]
        return VersionConflictError(skill_id, version_range or "any", list(dict.fromkeys(versions)))
    if agent is None:
        near = index.suggest_skills(skill_id, scopes, view)
        return SkillNotOfferedError(skill_id, near=near, unasked=unasked)
    named = index.find_named(agent)
    if named is None or not named.enabled or not is_seen(view, named.name):
        return UnknownAgentError(agent, near=index.suggest_names(agent, view), unasked=unasked)
    near = suggest(skill_id, named.list_skills(scopes))
    return UnknownSkillError(skill_id, near=near, unasked=unasked)
