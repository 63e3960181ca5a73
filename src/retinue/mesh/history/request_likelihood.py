"""How likely a request is for a skill, by its card and by the requests that it served.

``P(word) = (1 − b)·(counts + a·c·card) / (calls + a) + b·common``: the share of the served requests that
have the word, the words of the card, which counts as ``a`` = `CARD_CALLS` requests, and how common the word
is among the requests for any skill, with the weight ``b`` = `OTHER_WORDS`. So a word that many skills are
asked for with tells little, and a word that neither a card nor a served request has speaks as much against a
skill with many calls as against one without. docs/search.md has the weights and how they were found.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from retinue.mesh.history.experience_book import CALLER_SHARE
from retinue.mesh.history.records import Experience, find_voice

CARD_CALLS = 5.0
"""The requests that a card counts as."""

CARD_WORD = 0.5
"""How often a request for a skill has a word of its card."""

OTHER_WORDS = 0.15
"""The share of the words of a request that say nothing of the skill."""


@dataclass(frozen=True, slots=True)
class Served:
    """The requests that a skill served, and how many of them have each stem of the request."""

    calls: float
    counts: Mapping[int, float]


NOTHING_SERVED = Served(0.0, {})


def count_served(records: Iterable[Experience], stems: frozenset[int], caller: int) -> Served:
    """Count good calls, those of ``caller`` in full.

    Another caller counts for at most half of `CALLER_SHARE` requests, as its praise does.
    """
    records = list(records)
    by_voice = Counter(find_voice(record.caller) for record in records if record.caller != caller)
    calls = 0.0
    counts: defaultdict[int, float] = defaultdict(float)
    for record in records:
        weight = 1.0
        if record.caller != caller:
            weight = min(1.0, CALLER_SHARE / by_voice[find_voice(record.caller)]) / 2
        calls += weight
        for stem in stems.intersection(record.stems):
            counts[stem] += weight
    return Served(calls, counts)


def likelihood(card: Mapping[int, float], served: Served, common: Mapping[int, float]) -> float:
    """The logarithm of how likely a request is for a skill; ``common`` has its stems and their shares.

    The sum over the stems is divided by the square root of their number, because the words of a request
    go together.
    """
    calls = served.calls + CARD_CALLS
    total = 0.0
    for stem, share in common.items():
        own = served.counts.get(stem, 0.0) + CARD_CALLS * CARD_WORD * card.get(stem, 0.0)
        total += math.log((1.0 - OTHER_WORDS) * own / calls + OTHER_WORDS * share)
    return total / math.sqrt(len(common) or 1)
