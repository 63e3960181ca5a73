"""Finds skills by words, best first, and estimates whether any of them fits.

An index proposes skills (`retinue.mesh.search.text_index`), and one formula scores them
(`retinue.mesh.search.scoring`). The directory decides which hits a caller sees, so an outdated index
shows neither hidden nor deleted skills.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, get_args

import structlog

from retinue.core.errors import StateError
from retinue.core.record import Listing, ListingKey, Skill, Visibility, is_visible
from retinue.mesh.entry import Entry, entry_of
from retinue.mesh.search.gaps import describe_gap, may_fit
from retinue.mesh.search.scoring import (
    BACKGROUND_SKILLS,
    SearchQuery,
    inverse_frequency,
    read_query,
    score_skill,
)
from retinue.mesh.search.skill_texts import SkillText, entry_text_digest, render_text, text_digest
from retinue.mesh.search.text_index import MemoryTextIndex, TextIndex

CANDIDATES = 64
"""How many skills of a large index are scored for one query; at least twice the query's limit."""

WITHIN = 200
"""In a search within at most this many listings, none of their skills is missed that shares most stems."""

LIKELY_FROM = 0.28
"""The `Fit` score from which a hit is called likely; one in ten of the correct answers is below it."""

GAP_HITS = 5
"""How many of the best hits are asked for a kind of value or an action."""

BATCH = 100
"""How many texts are written before other tasks run: about 40 ms."""

_COMPARED = 1_000
"""How many digests are compared before other tasks run: about 5 ms."""

_FIT_SLOPE, _FIT_SHIFT, _FIT_SIZE = 4.81, -2.08, -0.29
_MAX_FIT_SKILLS = 2_000
"""The weights of `estimate_fit`, and the largest catalogue that they were found on."""

_log = structlog.get_logger("retinue.search")

Scopes = frozenset[str]
FindListing = Callable[[ListingKey], Listing | None]
FindEntry = Callable[[ListingKey], Entry | None]
FindSkill = Callable[[Entry, str], Skill | None]
Accept = Callable[[Entry], bool]


@dataclass(frozen=True, slots=True)
class Hit:
    """A skill of an agent with its score; scores are comparable within one query only.

    ``card`` is the score of its card alone, the same without earlier calls.
    """

    entry: Entry
    skill: Skill
    score: float
    card: float


@dataclass(frozen=True, slots=True)
class RankedSkill:
    """As `Hit`, before the skill is read, with its indexed facts."""

    entry: Entry
    skill_id: str
    score: float
    text: SkillText


class Learn(Protocol):
    """The weight of earlier calls in one search (`retinue.mesh.history.learned_ranking`)."""

    def propose(self) -> Sequence[tuple[Entry, str]]:
        """Skills that served requests like this one, as entry and skill id, best first."""

    def __call__(self, query: SearchQuery, ranked: Sequence[RankedSkill]) -> list[RankedSkill]:
        """The scored candidates with new scores."""

    def card_of(self, skill: RankedSkill) -> float:
        """The score of the card of a skill that the last search has scored."""

    def is_by_card(self, skill: RankedSkill) -> bool:
        """Whether its card gives the skill its place: calls for similar requests say nothing of it."""

    def share_served(self, skill: RankedSkill) -> float:
        """How well the skill served similar requests, to 1; 0 where that is not clear."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether the best hit fits the query: ``score`` from 0 to 1, comparable between queries.

    Words alone tell little about that. ``is_likely`` is also false where `may_fit` says no. It is a hint
    for the caller and never hides hits.
    """

    score: float
    is_likely: bool


@dataclass(frozen=True, slots=True)
class Found:
    """Hits, best first; ``more`` is a lower bound of the number of hits beyond the limit.

    ``did_you_mean`` is the query with its unknown words corrected to words of visible skills. The
    hits already include those for the corrections. ``gap`` says what the query asks for that is not offered.
    ``is_by_card`` = the best hit is first by its card. ``is_wish`` = nobody serves the query, as far as words
    and earlier calls tell.
    """

    hits: tuple[Hit, ...]
    fit: Fit
    more: int = 0
    did_you_mean: str | None = None
    gap: str | None = None
    is_by_card: bool = True
    is_wish: bool = True


NOTHING = Found((), Fit(0.0, False))


class SkillSearch:
    """Text search over the listings of a directory.

    ``find_listing`` returns the current listing, or None. ``find_entry`` and ``find_skill`` return parts
    of it, for directories where that is cheaper. If ``eager``, noted changes are indexed in batches
    as they arrive; otherwise the next search indexes them.
    """

    def __init__(
        self,
        index: TextIndex,
        find_listing: FindListing,
        *,
        find_entry: FindEntry | None = None,
        find_skill: FindSkill | None = None,
        eager: bool = False,
        candidates: int = CANDIDATES,
    ) -> None:
        self.index = index
        self._find_listing = find_listing
        self.find_entry = find_entry or self._shorten
        self._find_skill = find_skill or self._pick
        self._eager = eager
        self._candidates = candidates
        self._noted: dict[ListingKey, None] = {}

    def put(self, listings: Iterable[Listing]) -> None:
        """Index these listings; each replaces the listing of the same id."""
        self.index.put_all([render_text(listing) for listing in listings])

    def note(self, listing_id: ListingKey) -> None:
        """Record that this listing was changed or removed; cheap enough for every change of a directory."""
        self._noted[listing_id] = None
        if self._eager and len(self._noted) >= BATCH:
            try:
                self.catch_up()
            except StateError as error:
                # The changes stay noted, and the next search reports the error to its caller.
                _log.warning("text index unusable", error=error.message)

    def catch_up(self) -> int:
        """Index the noted changes; returns how many texts were written or removed."""
        written = 0
        while self._noted:
            batch = list(islice(self._noted, BATCH))
            stored = self.index.digests(batch)
            gone = [listing_id for listing_id in stored if self.find_entry(listing_id) is None]
            self.index.remove(gone)
            written += len(gone) + self._put_changed(batch, stored)
            for listing_id in batch:
                del self._noted[listing_id]
        return written

    async def synchronize(self, listing_ids: Collection[ListingKey]) -> int:
        """Make the index hold exactly these listings; returns how many texts were written or removed.

        Unchanged texts are kept. Other tasks run in between, because to index 100,000 agents takes about a
        minute.
        """
        missing = set(listing_ids)
        gone: list[ListingKey] = []
        stored: dict[ListingKey, str] = {}
        for number, (listing_id, digest) in enumerate(self.index.iterate_digests()):
            entry = self.find_entry(listing_id)
            if entry is None or listing_id not in missing:
                gone.append(listing_id)
            elif digest == entry_text_digest(entry):
                missing.discard(listing_id)
            else:
                stored[listing_id] = digest
            if number % _COMPARED == 0:
                await asyncio.sleep(0)
        self.index.remove(gone)
        written = len(gone)
        waiting = iter(missing)
        while batch := list(islice(waiting, BATCH)):
            written += self._put_changed(batch, stored)
            await asyncio.sleep(0)
        return written

    def find_skills(
        self,
        text: str,
        scopes: Scopes,
        *,
        limit: int = 50,
        within: Collection[ListingKey] | None = None,
        accept: Accept | None = None,
        learn: Learn | None = None,
    ) -> Found:
        """Find the visible skills that match a word of ``text``, best first; none for a text without words.

        ``within`` limits the search to some listings, ``accept`` to those for which it returns True.
        ``learn`` changes the scores and adds skills that match no word. Equal scores are ordered by
        reachable ▸ source ▸ key.
        """
        query, ranked = self.rank_skills(text, scopes, limit=limit, within=within, accept=accept, learn=learn)
        if not query.asked:
            return NOTHING
        fit = judge_fit(ranked[0], query, learn) if ranked else NOTHING.fit
        is_served = fit.is_likely or (learn is not None and any(map(learn.share_served, ranked[:GAP_HITS])))
        return Found(
            tuple(islice(self._open(ranked, learn), limit)),
            fit,
            max(0, len(ranked) - limit),
            self._correct(text, query, scopes),
            self._describe_gap(
                text, query, scopes, ranked, is_likely=is_served, is_within=within is not None
            ),
            not ranked or learn is None or learn.is_by_card(ranked[0]),
            not is_served,
        )

    def rank_skills(
        self,
        text: str,
        scopes: Scopes,
        *,
        limit: int,
        within: Collection[ListingKey] | None = None,
        accept: Accept | None = None,
        learn: Learn | None = None,
    ) -> tuple[SearchQuery, list[RankedSkill]]:
        """As `find_skills`, with all skills that were scored, and without reading them."""
        query, candidates = self.find_candidates(text, scopes, within, limit=max(self._candidates, 2 * limit))
        ranked: list[RankedSkill] = []
        for skill in candidates:
            score = score_skill(skill, query)
            entry = self.find_entry(skill.listing_id) if score > 0.0 else None
            if (
                entry is not None
                and (accept is None or accept(entry))
                and entry.offers(skill.skill_id, scopes)
            ):
                ranked.append(RankedSkill(entry, skill.skill_id, score, skill))
        if learn is not None and query.asked:
            ranked += self.list_proposed(learn, query, ranked, scopes, within=within, accept=accept)
            ranked = learn(query, ranked)
        ranked.sort(key=order_of)
        return query, ranked

    def list_proposed(
        self,
        learn: Learn,
        query: SearchQuery,
        ranked: Iterable[RankedSkill],
        scopes: Scopes,
        *,
        within: Collection[ListingKey] | None,
        accept: Accept | None,
    ) -> list[RankedSkill]:
        """The skills that earlier calls propose and the words of cards did not; their scores may be 0."""
        known = {(skill.entry.id, skill.skill_id) for skill in ranked}
        proposed: list[RankedSkill] = []
        for entry, skill_id in learn.propose():
            if (
                (entry.id, skill_id) in known
                or (within is not None and entry.id not in within)
                or (accept is not None and not accept(entry))
                or not entry.offers(skill_id, scopes)
            ):
                continue
            proposed += (
                RankedSkill(entry, skill_id, score_skill(text, query), text)
                for text in self.index.list_skills([entry.id], visible_to(scopes))
                if text.skill_id == skill_id
            )
        return proposed

    def find_candidates(
        self,
        text: str,
        scopes: Scopes,
        within: Collection[ListingKey] | None = None,
        *,
        limit: int = CANDIDATES,
    ) -> tuple[SearchQuery, Sequence[SkillText]]:
        """The query, and the visible texts to score for it."""
        self.catch_up()
        query = read_query(text, self.index)
        visible = visible_to(scopes)
        if not query.asked:
            return query, []
        if within is None:
            return query, self.index.list_candidates(query.asked, query.expanded, visible, limit=limit)
        if len(within) <= WITHIN:
            return query, self.index.list_matching(within, query.asked, query.expanded, visible, limit=limit)
        ids = within if isinstance(within, Set) else frozenset(within)
        return query, self.index.list_candidates(
            query.asked, query.expanded, visible, limit=limit, within=ids
        )

    def _open(self, ranked: Iterable[RankedSkill], learn: Learn | None) -> Iterator[Hit]:
        for skill_rank in ranked:
            skill = self._find_skill(skill_rank.entry, skill_rank.skill_id)
            if skill is not None:
                card = skill_rank.score if learn is None else learn.card_of(skill_rank)
                yield Hit(skill_rank.entry, skill, skill_rank.score, card)

    def _put_changed(self, listing_ids: Iterable[ListingKey], stored: Mapping[ListingKey, str]) -> int:
        """Index those of these listings whose digest is not the stored one; returns how many."""
        changed = []
        for listing_id in listing_ids:
            digest = stored.get(listing_id)
            entry = self.find_entry(listing_id)
            if entry is None or (digest is not None and digest == entry_text_digest(entry)):
                continue
            listing = self._find_listing(listing_id)
            if listing is not None and digest != text_digest(listing):
                changed.append(listing)
        self.put(changed)
        return len(changed)

    def _shorten(self, listing_id: ListingKey) -> Entry | None:
        listing = self._find_listing(listing_id)
        return entry_of(listing) if listing is not None else None

    def _pick(self, entry: Entry, skill_id: str) -> Skill | None:
        listing = self._find_listing(entry.id)
        return listing.record.find_skill(skill_id) if listing is not None else None

    def _describe_gap(
        self,
        text: str,
        query: SearchQuery,
        scopes: Scopes,
        ranked: Sequence[RankedSkill],
        *,
        is_likely: bool,
        is_within: bool,
    ) -> str | None:
        """What is missing; words of skills outside of a search within some listings do not count."""
        visible = visible_to(scopes)
        held: set[str] = set()

        def knows(stem: str) -> bool:
            if not held:
                held.update(*(candidate.text.stems for candidate in ranked))
            return stem in held or (
                not is_within
                and stem in self.index.counts([stem])
                and bool(self.index.list_candidates([stem], (), visible, limit=1))
            )

        hits = [candidate.text for candidate in ranked[:GAP_HITS]]
        return describe_gap(text, query, hits, knows, is_likely=is_likely)

    def _correct(self, text: str, query: SearchQuery, scopes: Scopes) -> str | None:
        """The text with its unknown words corrected, as far as the caller sees a skill with the right one."""
        corrected = text
        for word, term in query.corrections.items():
            if self.index.list_candidates([term.stem], (), visible_to(scopes), limit=1):
                corrected = re.sub(rf"\b{re.escape(word)}\b", term.word, corrected, flags=re.IGNORECASE)
        return corrected if corrected != text else None


def judge_fit(best: RankedSkill, query: SearchQuery, learn: Learn | None = None) -> Fit:
    """Whether the best hit fits the query: by its words, or because it served similar requests."""
    is_by_card = learn is not None and learn.is_by_card(best)
    fit = estimate_fit(learn.card_of(best) if learn is not None and is_by_card else best.score, query)
    served = 0.0 if learn is None else learn.share_served(best)
    if served > 0.0:
        return Fit(max(fit.score, served), True)
    return Fit(fit.score, fit.is_likely and may_fit(best.text, query))


def estimate_fit(score: float, query: SearchQuery) -> Fit:
    """Estimate from the best score whether its skill fits the query.

    The best score of many skills is higher than that of a few, also if none fits. The weights are those
    of a logistic regression over public sets (`benchmarks/ranking.py`).
    """
    if score <= 0.0:
        return Fit(0.0, False)
    size = math.log(min(max(query.corpus.skills, 2), _MAX_FIT_SKILLS))
    fit = 1.0 / (
        1.0 + math.exp(-(_FIT_SLOPE * normalize_score(score, query) + _FIT_SIZE * size + _FIT_SHIFT))
    )
    return Fit(fit, fit >= LIKELY_FROM)


def normalize_score(score: float, query: SearchQuery) -> float:
    """The score as a number that is comparable between queries: about 1 for a skill that fits.

    It is divided by the weight of the rarest possible word and by the square root of the number of words.
    """
    return score / highest_score(query)


def highest_score(query: SearchQuery) -> float:
    """The score of a skill that fits the query, about."""
    rarest = inverse_frequency(0, query.corpus.skills + BACKGROUND_SKILLS)
    return rarest * math.sqrt(len(query.asked))


def visible_to(scopes: Scopes) -> frozenset[Visibility]:
    """The kinds of visibility that these scopes see."""
    kinds: tuple[Visibility, ...] = get_args(Visibility)
    return frozenset(kind for kind in kinds if is_visible(kind, scopes))


def rank_skills(text: str, listings: Iterable[Listing], scopes: Scopes) -> Sequence[tuple[Listing, Skill]]:
    """The visible skills of a few listings that match ``text``, best first; all for a text without words.

    Reads every listing on each call; `SkillSearch` keeps an index.
    """
    held = {listing.id: listing for listing in listings}
    search = SkillSearch(MemoryTextIndex([render_text(candidate) for candidate in held.values()]), held.get)
    result = search.find_skills(
        text, scopes, limit=sum(len(candidate.record.skills) for candidate in held.values())
    )
    if result is NOTHING:
        return [
            (candidate, skill)
            for candidate in held.values()
            for skill in candidate.record.skills
            if is_visible(skill.visibility, scopes)
        ]
    return [(held[hit.entry.id], hit.skill) for hit in result.hits]


def order_of(ranked: RankedSkill) -> tuple[float, bool, bool, ListingKey]:
    """The key by which hits are sorted, best first."""
    entry = ranked.entry
    return -round(ranked.score, 9), not entry.enabled, entry.reachable is False, entry.id
