"""Where the words of all skills are kept to be searched: the port, and its twin in memory.

An index proposes candidates and knows the counts; how well a candidate fits is said by
`retinue.mesh.search.scoring`, so that every index gives the same order.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from retinue.core.record import ListingKey
from retinue.mesh.search.skill_texts import ListingText, SkillText


@dataclass(frozen=True, slots=True)
class Corpus:
    """How much text there is: skills, and the mean of `SkillText.length`."""

    skills: int = 0
    mean_length: float = 1.0


@dataclass(frozen=True, slots=True)
class Term:
    """A stem that an index holds: a word that gave it, and how many skills have it."""

    stem: str
    word: str
    skills: int


class TextIndex(Protocol):
    """Texts of listings by their id; losing it loses nothing: it is filled again from the listings.

    Each method raises StateError where the store cannot be read or written.
    """

    def put_all(self, texts: Sequence[ListingText]) -> None:
        """Keep these, all or none, each in the place of the one of its listing."""

    def remove(self, listing_ids: Collection[ListingKey]) -> None:
        """Forget these listings, as far as they are kept."""

    def marks(self, listing_ids: Collection[ListingKey] | None = None) -> Mapping[ListingKey, str]:
        """The marks of these listings, or of all, as far as they are kept."""

    def iterate_marks(self) -> Iterator[tuple[ListingKey, str]]:
        """As `marks` of all, a few at a time: there may be writing in between."""

    def corpus(self) -> Corpus:
        """How much text is kept."""

    def counts(self, stems: Collection[str]) -> Mapping[str, int]:
        """How many skills have each stem; those that none has are absent."""

    def list_terms(self, prefix: str, *, limit: int) -> Sequence[Term]:
        """Stems that begin with ``prefix``, the most frequent first."""

    def list_candidates(
        self,
        stems: Mapping[str, float],
        wide: Mapping[str, float],
        visibilities: Collection[str],
        *,
        limit: int,
    ) -> Sequence[SkillText]:
        """Skills that share most with the words asked, in no order that means anything.

        ``stems`` are the words asked and ``wide`` others that stand for them, with their weights.
        Exact in a small index; a large one may propose fewer than share a word, never another.
        """

    def list_skills(
        self, listing_ids: Iterable[ListingKey], visibilities: Collection[str]
    ) -> Sequence[SkillText]:
        """All skills of these listings."""

    def close(self) -> None:
        """Give back what the index holds; it must not be used afterwards."""


class MemoryTextIndex:
    """The twin in memory: exact, and forgotten with its process."""

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
            for at, skill in enumerate(text.skills):
                self._skills += 1
                self._length += skill.length
                for stem in set(" ".join(skill.fields).split()):
                    if stem not in self._postings:
                        self._postings[stem] = {}
                        self._words[stem] = text.words.get(stem, stem)
                        if self._sorted is not None:
                            insort(self._sorted, stem)
                    self._postings[stem][text.listing_id, at] = None

    def remove(self, listing_ids: Collection[ListingKey]) -> None:
        for listing_id in listing_ids:
            text = self._texts.pop(listing_id, None)
            for at, skill in enumerate(text.skills if text is not None else ()):
                self._skills -= 1
                self._length -= skill.length
                for stem in set(" ".join(skill.fields).split()):
                    self._postings[stem].pop((listing_id, at))
                    if not self._postings[stem]:
                        del self._postings[stem], self._words[stem]
                        self._sorted = None

    def marks(self, listing_ids: Collection[ListingKey] | None = None) -> Mapping[ListingKey, str]:
        asked = self._texts if listing_ids is None else [one for one in listing_ids if one in self._texts]
        return {listing_id: self._texts[listing_id].mark for listing_id in asked}

    def iterate_marks(self) -> Iterator[tuple[ListingKey, str]]:
        return iter(list(self.marks().items()))

    def corpus(self) -> Corpus:
        return Corpus(self._skills, self._length / self._skills) if self._skills else Corpus()

    def counts(self, stems: Collection[str]) -> Mapping[str, int]:
        return {stem: len(self._postings[stem]) for stem in stems if stem in self._postings}

    def list_terms(self, prefix: str, *, limit: int) -> Sequence[Term]:
        if self._sorted is None:
            self._sorted = sorted(self._postings)
        found = []
        for at in range(bisect_left(self._sorted, prefix), len(self._sorted)):
            stem = self._sorted[at]
            if not stem.startswith(prefix):
                break
            found.append(Term(stem, self._words[stem], len(self._postings[stem])))
        return sorted(found, key=lambda term: (-term.skills, term.stem))[:limit]

    def list_candidates(
        self,
        stems: Mapping[str, float],
        wide: Mapping[str, float],
        visibilities: Collection[str],
        *,
        limit: int,
    ) -> Sequence[SkillText]:
        shared: defaultdict[tuple[ListingKey, int], float] = defaultdict(float)
        for stem, weight in {**wide, **stems}.items():
            postings = self._postings.get(stem, ())
            for place in postings:
                # A rough measure, to choose whom to score: a rare word says more than a frequent one.
                shared[place] += weight / len(postings)
        visible = (place for place in shared if self._at(place).visibility in visibilities)
        return [self._at(place) for place in heapq.nlargest(limit, visible, key=shared.__getitem__)]

    def list_skills(
        self, listing_ids: Iterable[ListingKey], visibilities: Collection[str]
    ) -> Sequence[SkillText]:
        texts = (self._texts[one] for one in listing_ids if one in self._texts)
        return [skill for text in texts for skill in text.skills if skill.visibility in visibilities]

    def close(self) -> None:
        return None

    def _at(self, place: tuple[ListingKey, int]) -> SkillText:
        return self._texts[place[0]].skills[place[1]]
