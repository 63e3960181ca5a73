"""Which skills fit some words, best first, and whether any fits at all.

An index proposes skills (`retinue.mesh.search.text_index`), one formula orders them
(`retinue.mesh.search.scoring`), and the record itself has the last word on who may see them, so that an
index that lags behind can neither show a hidden skill nor one that is gone.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import get_args

import structlog

from retinue.core.errors import StateError
from retinue.core.record import Listing, ListingKey, Skill, Visibility
from retinue.mesh.entry import Entry, entry_of
from retinue.mesh.search.scoring import Query, rarity, read_query, score_skill
from retinue.mesh.search.skill_texts import SkillText, mark_of, mark_of_entry, render_text
from retinue.mesh.search.text_index import MemoryTextIndex, TextIndex
from retinue.mesh.visibility import is_visible

CANDIDATES = 100
"""Skills of a large index that are scored for one query, or twice its limit where that is more."""

WITHIN = 200
"""Of so few listings every skill is scored; of more, only those among the candidates."""

LIKELY_FROM = 0.4
"""Of MetaTool's unseen half, 40 % of the requests that no tool fits lie below it, and 8 % of those
that were answered rightly (`benchmarks/ranking.py`)."""

_FILTERED = 10
"""So many times more candidates are looked at where a filter leaves out some."""

BATCH = 100
"""Texts written at once while others wait: some 40 ms."""

GLANCED = 1_000
"""Marks compared while others wait: some 5 ms."""

_FIT_SLOPE, _FIT_SHIFT = 2.23, -1.45

_log = structlog.get_logger("retinue.search")

Scopes = frozenset[str]
FindListing = Callable[[ListingKey], Listing | None]
FindEntry = Callable[[ListingKey], Entry | None]
FindSkill = Callable[[Entry, str], Skill | None]
Accept = Callable[[Entry], bool]


@dataclass(frozen=True, slots=True)
class Hit:
    """A skill of an agent, and how well it answers: comparable within one query only."""

    entry: Entry
    skill: Skill
    score: float


@dataclass(frozen=True, slots=True)
class Placed:
    """As `Hit`, before anybody wants to see the skill."""

    entry: Entry
    skill_id: str
    score: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether the best hit does what was asked: ``score`` 0 to 1, comparable between queries.

    Words alone tell little: the area under the curve is 0.68 where the tools of a catalogue
    resemble each other, 0.81 against requests answered rightly. ``is_likely`` is a hint to say so,
    never a reason to hide the hits.
    """

    score: float
    is_likely: bool


@dataclass(frozen=True, slots=True)
class Found:
    """Hits, best first. ``more`` tells how many lay beyond the limit, at least.

    ``did_you_mean`` is the query with its unknown words in a spelling that visible skills use; the
    hits count them already.
    """

    hits: tuple[Hit, ...]
    fit: Fit
    more: int = 0
    did_you_mean: str | None = None


NOTHING = Found((), Fit(0.0, False))


class SkillSearch:
    """Text search over listings; ``find_listing`` gives what holds now of a listing, or None.

    ``find_entry`` gives the same in short and ``find_skill`` one skill of it, where that costs less.
    With ``eager`` what is noted is taken in by and by, as in a hub; else all of it by the first search.
    """

    def __init__(
        self,
        index: TextIndex,
        find_listing: FindListing,
        *,
        find_entry: FindEntry | None = None,
        find_skill: FindSkill | None = None,
        eager: bool = False,
    ) -> None:
        self.index = index
        self.find_listing = find_listing
        self.find_entry = find_entry or self._shorten
        self._find_skill = find_skill or self._pick
        self._eager = eager
        self._noted: dict[ListingKey, None] = {}

    def put(self, listings: Iterable[Listing]) -> None:
        """Let these be found, each in the place of the one with its id."""
        self.index.put_all([render_text(listing) for listing in listings])

    def remove(self, listing_id: ListingKey) -> None:
        """Let the listing be found no more."""
        self.index.remove([listing_id])

    def note(self, listing_id: ListingKey) -> None:
        """Something about this listing is new, or it is gone: it is looked at before the next search.

        Cheap, for whoever watches a directory; what was measured of an agent changes no text.
        """
        self._noted[listing_id] = None
        if self._eager and len(self._noted) >= BATCH:
            try:
                self.catch_up()
            except StateError as error:
                # it stays noted, and whoever searches is told
                _log.warning("text index unusable", error=error.message)

    def catch_up(self) -> int:
        """Take in all that was noted; returns how many texts were written or removed."""
        written = 0
        while self._noted:
            noted = list(islice(self._noted, BATCH))
            marks = self.index.marks(noted)
            new = self._list_new({listing_id: marks.get(listing_id) for listing_id in noted})
            gone = [listing_id for listing_id in marks if self.find_entry(listing_id) is None]
            self.put(new)
            self.index.remove(gone)
            written += len(new) + len(gone)
            for listing_id in noted:
                del self._noted[listing_id]
        return written

    async def synchronize(self, listing_ids: Collection[ListingKey]) -> int:
        """Make the index hold exactly these; returns how many texts were written or removed.

        What the index has already is left alone, so that after a restart this costs one look each.
        Others run in between: the first time, 100,000 agents take most of a minute.
        """
        wanted = set(listing_ids)
        gone: list[ListingKey] = []
        stale: dict[ListingKey, str] = {}
        for number, (listing_id, mark) in enumerate(self.index.iterate_marks()):
            entry = self.find_entry(listing_id)
            if entry is None or listing_id not in wanted:
                gone.append(listing_id)
            elif mark == mark_of_entry(entry):
                wanted.discard(listing_id)
            else:
                stale[listing_id] = mark
            if number % GLANCED == 0:
                await asyncio.sleep(0)
        written = len(gone)
        self.index.remove(gone)
        left = iter(wanted)
        while some := list(islice(left, BATCH)):
            new = self._list_new({listing_id: stale.get(listing_id) for listing_id in some})
            self.put(new)
            written += len(new)
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
    ) -> Found:
        """The visible skills that share a word with ``text`` or with what it may mean, best first.

        ``within`` narrows to some listings, ``accept`` to those it likes. Equal scores come by
        reachable ▸ source ▸ key. Empty for a text without words.
        """
        query, placed = self.rank_skills(text, scopes, limit=limit, within=within, accept=accept)
        if not query.asked:
            return NOTHING
        hits = list(islice(self._open(placed), limit))
        return Found(
            tuple(hits),
            judge(placed[0].score if placed else 0.0, query),
            max(0, len(placed) - limit),
            self._correct(text, query, scopes),
        )

    def rank_skills(
        self,
        text: str,
        scopes: Scopes,
        *,
        limit: int,
        within: Collection[ListingKey] | None = None,
        accept: Accept | None = None,
    ) -> tuple[Query, list[Placed]]:
        """As `find_skills`, with all that was looked at and without a look into any card."""
        self.catch_up()
        query = read_query(text, self.index)
        placed: list[Placed] = []
        if not query.asked:
            return query, placed
        for skill in self.list_candidates(query, scopes, within, limit=max(CANDIDATES, 2 * limit)):
            score = score_skill(skill, query)
            entry = self.find_entry(skill.listing_id) if score > 0.0 else None
            if entry is None or (accept is not None and not accept(entry)):
                continue
            if entry.offers(skill.skill_id, scopes):
                placed.append(Placed(entry, skill.skill_id, score))
        placed.sort(key=_preference)
        return query, placed

    def list_candidates(
        self,
        query: Query,
        scopes: Scopes,
        within: Collection[ListingKey] | None = None,
        *,
        limit: int = CANDIDATES,
    ) -> Sequence[SkillText]:
        """The texts worth scoring."""
        visible = visible_to(scopes)
        if within is not None and len(within) <= WITHIN:
            return self.index.list_skills(within, visible)
        asked = {stem: query.weights[stem] for stem in query.asked}
        if within is None:
            return self.index.list_candidates(asked, query.wide, visible, limit=limit)
        wanted = set(within)
        many = self.index.list_candidates(asked, query.wide, visible, limit=limit * _FILTERED)
        return [one for one in many if one.listing_id in wanted]

    def _open(self, placed: Iterable[Placed]) -> Iterator[Hit]:
        for one in placed:
            skill = self._find_skill(one.entry, one.skill_id)
            if skill is not None:
                yield Hit(one.entry, skill, one.score)

    def _list_new(self, marks: Mapping[ListingKey, str | None]) -> list[Listing]:
        """Those whose text is another than the one with this mark."""
        new = []
        for listing_id, mark in marks.items():
            entry = self.find_entry(listing_id)
            if entry is None or (mark is not None and mark == mark_of_entry(entry)):
                continue
            listing = self.find_listing(listing_id)
            if listing is not None and mark != mark_of(listing):
                new.append(listing)
        return new

    def _shorten(self, listing_id: ListingKey) -> Entry | None:
        listing = self.find_listing(listing_id)
        return entry_of(listing) if listing is not None else None

    def _pick(self, entry: Entry, skill_id: str) -> Skill | None:
        listing = self.find_listing(entry.id)
        return listing.record.find_skill(skill_id) if listing is not None else None

    def _correct(self, text: str, query: Query, scopes: Scopes) -> str | None:
        """The text as it was probably meant; only words of skills that the caller sees are offered."""
        corrected = text
        for word, (stem, meant) in query.typos.items():
            if self.index.list_candidates({stem: 1.0}, {}, visible_to(scopes), limit=1):
                corrected = re.sub(rf"\b{re.escape(word)}\b", meant, corrected, flags=re.IGNORECASE)
        return corrected if corrected != text else None


def judge(best: float, query: Query) -> Fit:
    """Whether a skill with this score does what was asked.

    The score is set against what one word of the rarest kind brings, and against the square root
    of the words asked: this separated fitting from unfitting best among eleven measures tried.
    """
    if best <= 0.0:
        return Fit(0.0, False)
    measure = best / (rarity(0, query.corpus.skills) * math.sqrt(len(query.asked)))
    score = 1.0 / (1.0 + math.exp(-(_FIT_SLOPE * measure + _FIT_SHIFT)))
    return Fit(score, score >= LIKELY_FROM)


def visible_to(scopes: Scopes) -> frozenset[Visibility]:
    """The kinds of visibility that these scopes see."""
    kinds: tuple[Visibility, ...] = get_args(Visibility)
    return frozenset(kind for kind in kinds if is_visible(Skill("", visibility=kind), scopes))


def rank_skills(text: str, listings: Iterable[Listing], scopes: Scopes) -> Sequence[tuple[Listing, Skill]]:
    """The visible skills of a few listings that answer ``text``, best first; all for a text without words.

    It reads every listing; `SkillSearch` keeps them read.
    """
    held = {listing.id: listing for listing in listings}
    search = SkillSearch(MemoryTextIndex([render_text(one) for one in held.values()]), held.get)
    found = search.find_skills(text, scopes, limit=sum(len(one.record.skills) for one in held.values()))
    if found is NOTHING:
        return [
            (one, skill) for one in held.values() for skill in one.record.skills if is_visible(skill, scopes)
        ]
    return [(held[hit.entry.id], hit.skill) for hit in found.hits]


def _preference(placed: Placed) -> tuple[float, bool, bool, ListingKey]:
    entry = placed.entry
    return -round(placed.score, 9), not entry.enabled, entry.reachable is False, entry.id
