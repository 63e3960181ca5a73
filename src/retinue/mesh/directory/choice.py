"""Orders the agents that offer a skill by trust and specialisation, before any statistic counts.

Specification 7, "Trust before statistics". `choice_order` is the only place that decides it; a strategy
orders only agents of one group, which are equal here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from retinue.core.record import Candidate
from retinue.core.trust import TRUST_PHRASES, Trust
from retinue.mesh.directory.versions import choice_tier
from retinue.mesh.health.breaker import UNREACHABLE_TIER

C = TypeVar("C", bound=Candidate)

_KIND, _MODEL = "kind", "model"
"""The label of agents that answer any task by a language model."""

_STANDBY_TIER = UNREACHABLE_TIER
_AWAY_TIER = _STANDBY_TIER + 1


class ChoiceOrder(NamedTuple):
    """Sort key of an agent for one call, the best first; agents of equal keys are one group.

    Unreachable agents come last, because a call that does not reach one goes to the next agent anyway. Of the
    others trust decides first. ``is_standby`` marks older versions and deprecated agents, ``is_model`` an
    agent that takes any task, which comes after one that was made for the skill.
    """

    is_unreachable: bool
    trust: Trust
    is_standby: bool
    is_model: bool
    tier: int


def choice_order(candidate: Candidate) -> ChoiceOrder:
    """The place of an agent among those that offer a skill."""
    tier = choice_tier(candidate)
    return ChoiceOrder(
        tier >= _AWAY_TIER,
        candidate.trust,
        candidate.standby,
        candidate.labels.get(_KIND) == _MODEL,
        tier,
    )


def list_groups(ordered: Sequence[C]) -> Iterator[tuple[ChoiceOrder, Sequence[C]]]:
    """The groups of ``ordered``, which is sorted by `choice_order`, without a look at each agent."""
    start = 0
    while start < len(ordered):
        order = choice_order(ordered[start])
        end = _find_end(ordered, start, order)
        yield order, ordered[start:end]
        start = end


def _find_end(ordered: Sequence[C], start: int, order: ChoiceOrder) -> int:
    """The place behind the group that begins at ``start``; steps double, so that small groups are cheap."""
    step = 1
    while start + step < len(ordered) and choice_order(ordered[start + step]) == order:
        step *= 2
    low, high = start + step // 2 + 1, min(start + step, len(ordered))
    while low < high:
        middle = (low + high) // 2
        if choice_order(ordered[middle]) == order:
            low = middle + 1
        else:
            high = middle
    return low


def describe_trust(candidate: Candidate) -> str:
    """The reasons of the agent's place in `choice_order`, as one sentence."""
    order = choice_order(candidate)
    facts = [TRUST_PHRASES[order.trust]]
    if order.is_model:
        facts.append("a model, which comes after agents made for the skill")
    if order.is_standby:
        facts.append("an older version or deprecated")
    if order.is_unreachable:
        facts.append("unreachable")
    return f"for calls that name no agent it is {', '.join(facts)}"
