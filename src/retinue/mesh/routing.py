"""Which agents may take a call, and in which order they are tried.

The directory says who offers a skill, its order included; here the wishes of one call narrow that
down, and a strategy arranges what is left. Workflows and doors share it.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, TypeVar

from retinue.mesh.entry import Candidate
from retinue.mesh.health import tier_of
from retinue.mesh.pulse import Pulses
from retinue.mesh.versions import parse_version_range

C = TypeVar("C", bound=Candidate)

StrategyName = Literal["best", "first", "round-robin", "random", "least-connections"]
"""The values of the setting ``routing.strategy``."""

MANY = 64
"""Of more agents than these it would cost too much, with each call, to look at every one."""

_COMPARED = 8
"""Up to so many agents `Best` compares them all; of more, the first and two others."""


class Strategy(Protocol):
    """Arranges the candidates of one call that are equally healthy, best first; it drops and adds none."""

    def __call__(self, candidates: Sequence[C], skill_id: str) -> Sequence[C]: ...


def first(candidates: Sequence[C], skill_id: str) -> Sequence[C]:
    """Keep the directory's order: the same call goes to the same agent (SPEC 2, doubt 8)."""
    return candidates


class RoundRobin:
    """Each call of a skill begins one agent further on."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def __call__(self, candidates: Sequence[C], skill_id: str) -> Sequence[C]:
        turn = self._turns.get(skill_id, 0)
        self._turns[skill_id] = turn + 1
        start = turn % len(candidates)
        return [*candidates[start:], *candidates[:start]]


class Random:
    """Any order; ``seed`` makes it the same in each process."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)

    def __call__(self, candidates: Sequence[C], skill_id: str) -> Sequence[C]:
        return self._random.sample(candidates, len(candidates))


class LeastConnections:
    """Who has the fewest calls in flight; the directory's order among equals."""

    def __init__(self, pulses: Pulses) -> None:
        self._pulses = pulses

    def __call__(self, candidates: Sequence[C], skill_id: str) -> Sequence[C]:
        return sorted(candidates, key=lambda one: self._pulses.of(one).in_flight)


class Best:
    """Who would answer soonest: latency × calls in flight, failures made dear; new agents get tried.

    The directory's order among equals, so that the first call goes to the first agent. Of many
    agents it compares the first and two by chance, which balances nearly as well as comparing all
    (the power of two choices) and costs the same among a thousand.
    """

    def __init__(self, pulses: Pulses, seed: int | None = None) -> None:
        self._pulses = pulses
        self._random = random.Random(seed)

    def __call__(self, candidates: Sequence[C], skill_id: str) -> Sequence[C]:
        pulses = self._pulses
        if len(candidates) <= _COMPARED:
            return sorted(candidates, key=lambda one: pulses.of(one).cost(skill_id))
        drawn = {0, *self._random.sample(range(1, len(candidates)), 2)}
        places = sorted(drawn, key=lambda place: (pulses.of(candidates[place]).cost(skill_id), place))
        ordered = [candidates[place] for place in places]
        start = 0
        for place in sorted(drawn):
            ordered += candidates[start:place]
            start = place + 1
        return [*ordered, *candidates[start:]]


def make_strategy(name: StrategyName, pulses: Pulses, *, seed: int | None = None) -> Strategy:
    """The strategy of this name, over the figures that the dispatcher keeps in ``pulses``."""
    strategies: Mapping[StrategyName, Strategy] = {
        "best": Best(pulses, seed),
        "first": first,
        "round-robin": RoundRobin(),
        "random": Random(seed),
        "least-connections": LeastConnections(pulses),
    }
    return strategies[name]


def select_candidates(
    listings: Sequence[C],
    *,
    agent: str | None = None,
    version_range: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> tuple[C, ...]:
    """Those of ``listings`` that are enabled, called ``agent``, of a version in the range, so labelled.

    ``agent`` is a name, or ``name@source``; each of ``labels`` must be there with its value, where
    ``*`` stands for any. Raises InvalidSettingError for text that is no range.
    """
    wanted = parse_version_range(version_range) if version_range is not None else None
    return tuple(
        listing
        for listing in listings
        if listing.enabled
        and (agent is None or is_called(listing, agent))
        and (wanted is None or wanted.fits(listing.version))
        and (not labels or has_labels(listing, labels))
    )


def is_called(listing: Candidate, agent: str) -> bool:
    """Whether ``agent`` is the listing's name, bare or with its source."""
    name = listing.name
    return agent in (name, f"{name}@{listing.source}")


def has_labels(listing: Candidate, labels: Mapping[str, str]) -> bool:
    """Whether the agent carries every one of ``labels``; the value ``*`` asks for the key alone."""
    own = listing.labels
    return all(key in own and value in ("*", own[key]) for key, value in labels.items())


def order_candidates(listings: Sequence[C], strategy: Strategy = first, skill_id: str = "") -> tuple[C, ...]:
    """The order in which to try ``listings``: the healthy, the degraded, then the unreachable.

    The strategy arranges the first two. The unreachable are kept, since they may be back, and nobody
    else may offer the skill. More than ``MANY`` must come in the order of a directory.
    """
    healthy, degraded, unreachable = _split_tiers(listings)
    return (
        *(strategy(healthy, skill_id) if len(healthy) > 1 else healthy),
        *(strategy(degraded, skill_id) if len(degraded) > 1 else degraded),
        *unreachable,
    )


def _split_tiers(listings: Sequence[C]) -> Sequence[Sequence[C]]:
    if len(listings) > MANY:
        degraded, unreachable = (bisect_left(listings, tier, key=tier_of) for tier in (1, 2))
        return listings[:degraded], listings[degraded:unreachable], listings[unreachable:]
    tiers: tuple[list[C], list[C], list[C]] = ([], [], [])
    for listing in listings:
        tiers[tier_of(listing)].append(listing)
    return tiers
