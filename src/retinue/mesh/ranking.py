"""Which skills fit some words: the first, plain form (names count three times, every word once).

Names are split at case and punctuation, so that ``create_plan``, ``createPlan`` and ``create-plan``
are the same words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from retinue.core.record import Listing, Skill
from retinue.mesh.visibility import is_visible

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")
_NAME_WEIGHT = 3


def split_words(text: str) -> list[str]:
    """The words of a text or an identifier, in lower case."""
    return [word.casefold() for word in _WORD.findall(text)]


def rank_skills(
    text: str, listings: Iterable[Listing], scopes: frozenset[str]
) -> Sequence[tuple[Listing, Skill]]:
    """The visible skills that share a word with ``text``, best first; all of them for an empty text."""
    asked = set(split_words(text))
    found: list[tuple[int, int, Listing, Skill]] = []
    for listing in listings:
        for skill in listing.record.skills:
            if not is_visible(skill, scopes):
                continue
            score = _score(asked, listing, skill)
            if score or not asked:
                found.append((-score, len(found), listing, skill))
    found.sort(key=lambda one: one[:2])
    return [(listing, skill) for _, _, listing, skill in found]


def _score(asked: set[str], listing: Listing, skill: Skill) -> int:
    named = asked.intersection(split_words(skill.id))
    told = asked.intersection(
        split_words(
            " ".join(
                (
                    skill.title or "",
                    skill.description,
                    *skill.tags,
                    *skill.similes,
                    *(example.text or "" for example in skill.examples),
                    listing.record.name,
                    *listing.record.topics,
                )
            )
        )
    )
    return _NAME_WEIGHT * len(named) + len(told)
