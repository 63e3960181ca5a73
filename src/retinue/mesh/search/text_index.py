"""The port of the text index, and its implementation in memory.

An index proposes candidates and counts stems. `retinue.mesh.search.scoring` scores the candidates, so
every index gives the same order.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from retinue.core.record import ListingKey
from retinue.mesh.search.skill_texts import ListingText, SkillText

EXPANDED_WEIGHT = 0.5
"""How much an expanded stem counts in the choice of candidates, compared with one that was asked."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """The number of indexed skills, and the mean of `SkillText.length`."""

    skills: int = 0
    mean_length: float = 1.0


@dataclass(frozen=True, slots=True)
class Term:
    """A stem of the index, one of its words, and the number of skills that have it."""

    stem: str
    word: str
    skills: int


class TextIndex(Protocol):
    """The texts of listings. They can be rebuilt from the listings, so an index may be lost.

    Every method raises StateError if the store cannot be read or written.
    """

    def put_all(self, texts: Sequence[ListingText]) -> None:
        """Store all of these texts or none; each replaces the text of the same listing."""

    def remove(self, listing_ids: Collection[ListingKey]) -> None:
        """Remove the texts of these listings; unknown ids are ignored."""

    def digests(self, listing_ids: Collection[ListingKey]) -> Mapping[ListingKey, str]:
        """The digests of the stored texts among these listings."""

    def iterate_digests(self) -> Iterator[tuple[ListingKey, str]]:
        """The digests of all stored texts; writing is allowed during the iteration."""

    def corpus(self) -> Corpus:
        """The size of the index."""

    def counts(self, stems: Collection[str]) -> Mapping[str, int]:
        """How many skills have each of these stems; stems that no skill has are left out."""

    def list_terms(self, prefix: str, *, limit: int) -> Sequence[Term]:
        """The terms whose stem starts with ``prefix``, the most frequent first."""

    def list_candidates(
        self,
        asked: Collection[str],
        expanded: Collection[str],
        visibilities: Collection[str],
        *,
        limit: int,
        within: Container[ListingKey] | None = None,
    ) -> Sequence[SkillText]:
        """The skills that share most with ``asked`` and, at a lower weight, ``expanded``, in any order.

        ``within`` = only skills of these listings. A small index returns all skills that share a stem. A
        large one may miss some, more of them where few listings are within.
        """

    def list_skills(
        self, listing_ids: Iterable[ListingKey], visibilities: Collection[str]
    ) -> Sequence[SkillText]:
        """All skills of these listings."""

    def list_matching(
        self,
        listing_ids: Collection[ListingKey],
        asked: Collection[str],
        expanded: Collection[str],
        visibilities: Collection[str],
        *,
        limit: int,
    ) -> Sequence[SkillText]:
        """As `list_candidates` within a few listings, of which it misses none that shares most."""

    def close(self) -> None:
        """Release the store; the index must not be used afterwards."""


def weigh_stems(counts: Mapping[str, int], asked: Collection[str]) -> dict[str, float]:
    """How much each stem counts in the choice of candidates, by the number of skills that have it.

    A rough measure is enough: rare stems count for more.
    """
    return {stem: (1.0 if stem in asked else EXPANDED_WEIGHT) / skills for stem, skills in counts.items()}


class MemoryTextIndex:
    """The index of a process without a state folder."""

    def __init__(self, texts: Sequence[ListingText] = ()) -> None:
        self._texts: dict[ListingKey, ListingText] = {}
        self._postings: dict[str, dict[tuple[ListingKey, int], None]] = {}
        self._words: dict[str, str] = {}
        self._sorted: list[str] | None = None
        self._skills = 0
        self._length = 0.0
        self.put_all(texts)

    def put_all(self, texts: Sequence[ListingText]) -> None:
        for text in texts:
            self.remove([text.listing_id])
            self._texts[text.listing_id] = text
            stems = {stem for skill in text.skills for stem in skill.stems}
            words = text.find_words(stems.difference(self._postings))
            for at, skill in enumerate(text.skills):
                self._skills += 1
                self._length += skill.length
                for stem in skill.stems:
                    if stem not in self._postings:
                        self._postings[stem] = {}
                        self._words[stem] = words.get(stem, stem)
                        if self._sorted is not None:
                            insort(self._sorted, stem)
                    self._postings[stem][text.listing_id, at] = None

    def remove(self, listing_ids: Collection[ListingKey]) -> None:
        for listing_id in listing_ids:
            text = self._texts.pop(listing_id, None)
            for at, skill in enumerate(text.skills if text is not None else ()):
                self._skills -= 1
                self._length -= skill.length
                for stem in skill.stems:
                    self._postings[stem].pop((listing_id, at))
                    if not self._postings[stem]:
                        del self._postings[stem], self._words[stem]
                        self._sorted = None

    def digests(self, listing_ids: Collection[ListingKey]) -> Mapping[ListingKey, str]:
        return {
            listing_id: self._texts[listing_id].digest
            for listing_id in listing_ids
            if listing_id in self._texts
        }

    def iterate_digests(self) -> Iterator[tuple[ListingKey, str]]:
        return iter([(listing_id, text.digest) for listing_id, text in self._texts.items()])

    def corpus(self) -> Corpus:
        return Corpus(self._skills, self._length / self._skills) if self._skills else Corpus()

    def counts(self, stems: Collection[str]) -> Mapping[str, int]:
        return {stem: len(self._postings[stem]) for stem in stems if stem in self._postings}

    def list_terms(self, prefix: str, *, limit: int) -> Sequence[Term]:
        if self._sorted is None:
            self._sorted = sorted(self._postings)
        terms = []
        for at in range(bisect_left(self._sorted, prefix), len(self._sorted)):
            stem = self._sorted[at]
            if not stem.startswith(prefix):
                break
            terms.append(Term(stem, self._words[stem], len(self._postings[stem])))
        return sorted(terms, key=lambda term: (-term.skills, term.stem))[:limit]

    def list_candidates(
        self,
        asked: Collection[str],
        expanded: Collection[str],
        visibilities: Collection[str],
        *,
        limit: int,
        within: Container[ListingKey] | None = None,
    ) -> Sequence[SkillText]:
        shared: defaultdict[tuple[ListingKey, int], float] = defaultdict(float)
        for stem, weight in weigh_stems(self.counts({*asked, *expanded}), asked).items():
            for place in self._postings[stem]:
                shared[place] += weight
        visible = (
            place
            for place in shared
            if (within is None or place[0] in within) and self._at(place).visibility in visibilities
        )
        return [self._at(place) for place in heapq.nlargest(limit, visible, key=shared.__getitem__)]

    def list_skills(
        self, listing_ids: Iterable[ListingKey], visibilities: Collection[str]
    ) -> Sequence[SkillText]:
        texts = (self._texts[listing_id] for listing_id in listing_ids if listing_id in self._texts)
        return [skill for text in texts for skill in text.skills if skill.visibility in visibilities]

    def list_matching(
        self,
        listing_ids: Collection[ListingKey],
        asked: Collection[str],
        expanded: Collection[str],
        visibilities: Collection[str],
        *,
        limit: int,
    ) -> Sequence[SkillText]:
        within = frozenset(listing_ids)
        return self.list_candidates(asked, expanded, visibilities, limit=limit, within=within)

    def close(self) -> None:
        return None

    def _at(self, place: tuple[ListingKey, int]) -> SkillText:
        return self._texts[place[0]].skills[place[1]]
