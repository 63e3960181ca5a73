"""Changes the scores of a search by what came of earlier calls.

``score = card + λ·(w·neighbours + (1 − w)·κ·card)``, with ``w = n / (n + 2)`` and ``n`` calls of the skill.
``neighbours`` tells what came of calls for requests that share stems with this one, from −1 to 1. All terms
are divided by ``1 + λ·κ``, so a skill without calls keeps the score of its card, and without any history the
ranking is that of the cards. A skill without calls, or with far fewer, whose card is best keeps its place
unless similar requests say more than its card (`LearnedRanking._keep_unproven`). docs/search.md has the
weights and how they were found.

Receipts of other hubs take from κ, the credit of a skill without calls: it is multiplied by 1 less the blame
of the agent. So they never raise a skill, and own calls outweigh them.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import nlargest

from retinue.core.call import ANONYMOUS
from retinue.core.record import ListingKey
from retinue.mesh.directory.choice import choice_order
from retinue.mesh.entry import Entry
from retinue.mesh.history.experience_book import ExperienceBook, count_calls, weigh_record
from retinue.mesh.history.records import VALUES, Experience, Hashes, SkillKey, find_voice, name_agent
from retinue.mesh.history.request_likelihood import NOTHING_SERVED, count_served, likelihood
from retinue.mesh.history.similar_records import SimilarRecords
from retinue.mesh.search.ranking import RankedSkill, highest_score, order_of
from retinue.mesh.search.scoring import SearchQuery, inverse_frequency, match_asked
from retinue.mesh.search.skill_texts import OWN_FIELDS

LAMBDA = 3.5
KAPPA = 0.13
"""The weight of the history, and the credit of a skill without one."""

NEXT_RECORD = 0.2
"""The share that the second most similar own record adds to ``neighbours``. More costs unused skills."""

KEPT_FROM = -1.2
"""A skill with few calls keeps its place if its `likelihood` is not below that of the first one by more."""

FEW_CALLS = 0.5
"""A skill with less than this share of the calls of the first one keeps its place as one without calls."""

SAME_REQUEST = 0.8
"""From this similarity a remembered request is the same one."""

MIN_SAME_REQUESTS = 3
"""Fewer of many remembered requests are the same one by chance, such as those of a single word. One that a
person rated as good is enough."""

COPIED = 0.8
"""A card with this share of the words of another one is a copy, which keeps no place."""

_MIN_COPIED_STEMS = 5

_SAME_SCORE = 1e-9

MAX_PROPOSED = 16
"""Skills that one search gets from the history though the words of their cards did not find them."""

PRIOR_CALLS = 2.0

EXPLORED = 0.1
"""The share of requests whose first place goes to an unproven skill that fits equally."""

FITS_EQUALLY = 0.9
"""A skill with this share of the best card's score fits equally."""

UNPROVEN = 0.5
"""A skill with fewer calls than this is unproven."""

SERVED_FROM = 0.5
"""A skill whose ``neighbours`` are above this fits the request, whatever its words. The praise of one other
caller does not get there."""

BAD_ALONE = 0.1
"""What one other caller takes from ``neighbours`` at most, if no second one agrees."""

_HOUR_S = 3_600.0

_LAST = 0.01
"""The share of its card's score that a skill keeps at least."""

FindDigest = Callable[[Entry, str], tuple[str, bool] | None]
"""The digest of a skill, and whether it may be called twice; None if the skill has gone."""

ListEntries = Callable[[SkillKey], Iterable[Entry]]
"""The entries of the agent of a skill; none if it has gone."""

FindBlame = Callable[[Entry], float]
"""The part of its credit that an agent loses by receipts of other hubs, 0 … 1."""


def blame_nobody(_agent: Entry) -> float:
    """The blame without receipts."""
    return 0.0


@dataclass(frozen=True, slots=True)
class ScoreParts:
    """The parts of one score, in units of the card's: ``total`` is their sum.

    ``calls`` are the weighted calls of the skill, ``neighbours`` lies between −1 and 1. ``is_tried`` = the
    skill has the first place because it is unproven and fits equally, ``is_kept`` = because its card fits
    best and similar requests say nothing else, ``is_behind`` = it is lowered to stay behind such a skill.
    ``receipts`` is what receipts of other hubs change, from 0 down.
    """

    card: float
    history: float
    calls: float
    neighbours: float
    is_tried: bool = False
    receipts: float = 0.0
    is_kept: bool = False
    is_behind: bool = False

    @property
    def total(self) -> float:
        return self.card + self.history + self.receipts

    @property
    def is_by_card(self) -> bool:
        """Whether its card gives the skill its place: calls for similar requests say nothing of it."""
        return self.is_kept or self.is_tried or not (self.neighbours or self.receipts)

    def as_json(self) -> dict[str, float | bool]:
        """The form in a reply; ``tried``, ``kept``, ``behind`` and ``receipts`` only where they hold."""
        row: dict[str, float | bool] = {
            "card": round(self.card, 3),
            "history": round(self.history, 3),
            "calls": round(self.calls, 2),
            "neighbours": round(self.neighbours, 3),
        }
        if self.receipts:
            row["receipts"] = round(self.receipts, 3)
        reasons = {"kept": self.is_kept, "behind": self.is_behind, "tried": self.is_tried}
        return row | {name: True for name, holds in reasons.items() if holds}

    def describe(self, skill_id: str) -> str:
        """The parts of the score in words."""
        score = f"the score of {skill_id} is {self.total:.2f}: {self.card:.2f} for its card"
        if self.is_tried:
            return f"{score}; it has the first place in this hour because it fits equally and is unproven"
        if self.is_kept:
            return f"{score}; it keeps this place because earlier calls for similar requests say nothing else"
        if not (self.calls or self.receipts):
            return f"{score}; no call of it counts yet"
        others = f", {self.receipts:+.2f} for failures that other hubs measured" if self.receipts else ""
        behind = ", behind a skill without calls whose card fits better" if self.is_behind else ""
        return (
            f"{score}, {self.history:+.2f} for {self.calls:.1f} earlier calls{behind}{others}; what came of "
            f"similar requests is {round(self.neighbours, 2) + 0.0:+.2f}, from -1 to 1"
        )


class LearnedRanking:
    """Gives the scored candidates of one search their new scores, for one caller.

    ``caller`` is the hash of that caller, ``stems`` are the hashes of its request. With ``only_own`` it
    learns from its own calls alone, because it does not see the calls of others.
    """

    def __init__(
        self,
        book: ExperienceBook,
        hashes: Hashes,
        find_digest: FindDigest,
        caller: int,
        stems: Sequence[int],
        *,
        only_own: bool = False,
        explored: float = EXPLORED,
        clock: Callable[[], float] = time.time,
        blame: FindBlame = blame_nobody,
        list_entries: ListEntries = lambda _key: (),
    ) -> None:
        self._book = book
        self._list_entries = list_entries
        self._hashes = hashes
        self._find_digest = find_digest
        self._caller = caller
        self._stems = stems
        self._only_own = only_own
        anonymous = hashes.of_caller(ANONYMOUS.id, is_member=False)
        self._ignored = None if caller == anonymous else anonymous
        """Callers without a token are all one, and teach nobody else."""
        self._explored = explored
        self._clock = clock
        self._blame = blame
        self.parts: dict[tuple[ListingKey, str], ScoreParts] = {}
        """The parts of the scores of the last search, by listing and skill; of skills with calls or blame."""

    @cached_property
    def _alike(self) -> Mapping[SkillKey, Sequence[tuple[Experience, float]]]:
        return self._find_alike(self._stems)

    def propose(self) -> list[tuple[Entry, str]]:
        """The skills of the most similar requests that were served, at most `MAX_PROPOSED`."""
        similar = {
            key: max((alike for record, alike in records if VALUES[record.verdict] > 0), default=0.0)
            for key, records in self._alike.items()
        }
        keys = nlargest(MAX_PROPOSED, (key for key in similar if similar[key]), key=similar.__getitem__)
        return [(entry, key.skill) for key in keys for entry in self._list_entries(key)]

    def __call__(self, query: SearchQuery, ranked: Sequence[RankedSkill]) -> list[RankedSkill]:
        """The candidates with their new scores, in any order, without those that match nothing."""
        self.parts.clear()
        if not ranked:
            return []
        stems, alike = self._stems, self._alike
        best = max(skill.score for skill in ranked) or highest_score(query)
        learned = [self._rescore(skill, best, alike) for skill in ranked]
        learned = [skill for skill in learned if skill.score > 0.0]
        if not learned or not self.parts or not len(self._book):
            return learned
        learned = self._keep_unproven(query, learned)
        return self._try_unproven(learned, ranked, stems)

    def find_parts(self, skill: RankedSkill) -> ScoreParts:
        """The parts of the score of a skill in the last search."""
        parts = self.parts.get((skill.entry.id, skill.skill_id))
        return ScoreParts(skill.score, 0.0, 0.0, 0.0) if parts is None else parts

    def card_of(self, skill: RankedSkill) -> float:
        """The score of the card of a skill that the last search has scored."""
        return self.find_parts(skill).card

    def is_by_card(self, skill: RankedSkill) -> bool:
        """Whether its card gives the skill its place: calls for similar requests say nothing of it."""
        return self.find_parts(skill).is_by_card

    def share_served(self, skill: RankedSkill) -> float:
        """How well the skill served similar requests, to 1; 0 where that is not clear."""
        near = self.find_parts(skill).neighbours
        return near if near > SERVED_FROM else 0.0

    def _keep_unproven(self, query: SearchQuery, learned: list[RankedSkill]) -> list[RankedSkill]:
        """Give its place back to the best skill with few calls if similar requests do not speak against it.

        The skills before it get scores just below its own, in their order.
        """
        first = max(learned, key=lambda skill: skill.score)
        proven = self.parts.get((first.entry.id, first.skill_id))
        if proven is None or proven.calls <= 0.0 or proven.neighbours <= 0.0:
            return learned
        unproven = [
            kept
            for skill in learned
            if skill is not first and (kept := self._as_unproven(skill, proven.calls))
        ]
        if not unproven:
            return learned
        rival = min(unproven, key=order_of)
        if rival.score < proven.card - _SAME_SCORE or _is_copy(rival, first):
            return learned
        if self._was_served(first) or self._compare(rival, first, query) < KEPT_FROM:
            return learned
        learned = [rival if _is(one, rival) else one for one in learned]
        parts = self.parts.get((rival.entry.id, rival.skill_id), ScoreParts(rival.score, 0.0, 0.0, 0.0))
        history = rival.score - parts.card
        self.parts[rival.entry.id, rival.skill_id] = replace(parts, history=history, is_kept=True)
        # a second skill without calls may have the same score but for its last digits, and is not before it
        before = sorted((skill for skill in learned if order_of(skill) < order_of(rival)), key=order_of)
        lowered = {
            (skill.entry.id, skill.skill_id): rival.score * (1.0 - 1e-6 * (number + 1))
            for number, skill in enumerate(before)
        }
        for place, score in lowered.items():
            parts = self.parts[place]
            self.parts[place] = replace(parts, history=score - parts.card - parts.receipts, is_behind=True)
        return [replace(one, score=lowered.get((one.entry.id, one.skill_id), one.score)) for one in learned]

    def _as_unproven(self, skill: RankedSkill, calls: float) -> RankedSkill | None:
        """The skill with the score of its card if it has far fewer calls, and no bad one; else None."""
        parts = self.parts.get((skill.entry.id, skill.skill_id))
        if parts is None:
            return skill
        if parts.calls >= FEW_CALLS * calls or parts.receipts < 0.0 or self._has_blame(skill):
            return None
        return replace(skill, score=max(skill.score, parts.card))

    def _was_served(self, first: RankedSkill) -> bool:
        """Whether ``first`` served this request, a few times or rated as good by a person."""
        same = [
            record.verdict
            for record, similarity in self._alike.get(_key_of(first), ())
            if VALUES[record.verdict] > 0.0 and similarity >= SAME_REQUEST
        ]
        return len(same) >= MIN_SAME_REQUESTS or "good" in same

    def _compare(self, rival: RankedSkill, first: RankedSkill, query: SearchQuery) -> float:
        """How much likelier the request is for ``rival`` by its card than for ``first`` by card and calls."""
        skills = self._skill_count + 1.0
        common = {stem: (count + 0.5) / skills for stem, count in self._count_skills(self._stems).items()}
        records = (
            record
            for record in self._book.records_of(_key_of(first))
            if VALUES[record.verdict] > 0.0 and self._counts_for(record)
        )
        served = count_served(records, frozenset(common), self._caller)
        of_first = likelihood(self._hash_card(first, query), served, common)
        return likelihood(self._hash_card(rival, query), NOTHING_SERVED, common) - of_first

    def _hash_card(self, skill: RankedSkill, query: SearchQuery) -> Mapping[int, float]:
        """The stems of the request that the card has, each with the weight of its best match, up to 1."""
        matched = match_asked(skill.text, query)
        return {self._hashes.of(stem): min(1.0, weight) for stem, weight in matched.items()}

    def _find_alike(self, stems: Sequence[int]) -> Mapping[SkillKey, Sequence[tuple[Experience, float]]]:
        """The records of requests that share stems with this one, each with its similarity from 0 to 1."""
        worths = self._weigh(stems)
        whole = sum(worths.values())
        similar = SimilarRecords(
            self._book, worths, self._caller, only_own=self._only_own, hidden=self._ignored
        )
        request = frozenset(stems)
        records = similar.choose()
        worths |= self._weigh(set().union(*(record.stems for record in records)).difference(request))
        alike: defaultdict[SkillKey, list[tuple[Experience, float]]] = defaultdict(list)
        for record in records:
            shared = sum(map(worths.__getitem__, request.intersection(record.stems)))
            norm = sum(map(worths.__getitem__, record.stems))
            alike[record.key].append((record, shared / math.sqrt(whole * norm)))
        return alike

    def _counts_for(self, record: Experience) -> bool:
        is_own = record.caller == self._caller
        return is_own or not (self._only_own or record.caller == self._ignored)

    @cached_property
    def _skill_count(self) -> int:
        """The skills that were asked for at all, as they count for the caller."""
        return self._book.stem_counts.count([None], self._caller, self._only_own, self._ignored)[None]

    def _count_skills(self, stems: Iterable[int]) -> Mapping[int, int]:
        """The skills that were asked for with each stem, as they count for the caller."""
        return self._book.stem_counts.count(stems, self._caller, self._only_own, self._ignored)

    def _weigh(self, stems: Iterable[int]) -> dict[int, float]:
        """The worth of each stem: the fewer skills are asked for with it, the more it tells."""
        counts = self._count_skills(stems)
        worths = {count: inverse_frequency(count, self._skill_count) for count in set(counts.values())}
        return {stem: worths[count] for stem, count in counts.items()}

    def _rescore(
        self,
        skill: RankedSkill,
        best: float,
        alike: Mapping[SkillKey, Sequence[tuple[Experience, float]]],
    ) -> RankedSkill:
        key = _key_of(skill)
        now, blame = self._clock(), self._blame(skill.entry)
        digest, calls = self._count_calls(skill, key, now)
        if calls <= 0.0 and not blame:
            return skill
        near = self._judge(alike.get(key, ()), digest, now) if calls > 0.0 else 0.0
        share = calls / (calls + PRIOR_CALLS)
        credit = (1.0 - share) * KAPPA * skill.score
        lost = LAMBDA * credit * blame / (1.0 + LAMBDA * KAPPA)
        score = (skill.score + LAMBDA * (share * near * best + credit)) / (1.0 + LAMBDA * KAPPA)
        # a skill that is proven bad for such requests stays a hit, as the last one
        total = max(score - lost, skill.score * _LAST)
        self.parts[skill.entry.id, skill.skill_id] = ScoreParts(
            skill.score, total + lost - skill.score, calls, near, receipts=-lost
        )
        return replace(skill, score=total)

    def _count_calls(self, skill: RankedSkill, key: SkillKey, now: float) -> tuple[str, float]:
        """The digest of a skill and its calls that count for this caller; ("", 0) without records."""
        records = self._book.records_of(key)
        facts = self._find_digest(skill.entry, skill.skill_id) if records else None
        if facts is None:
            return "", 0.0
        if self._only_own:
            own = (record for record in records if record.caller == self._caller)
            return facts[0], count_calls(own, facts[0], now)
        return facts[0], self._book.count_calls(key, facts[0], now, without=self._ignored)

    def _judge(self, alike: Iterable[tuple[Experience, float]], digest: str, now: float) -> float:
        """What came of the most similar requests, −1 … 1.

        The caller's own calls count in full, the second most similar one with `NEXT_RECORD`. Of the other
        callers one praises for half, and two for all. What one of them blames counts for `BAD_ALONE` at most,
        and a correction not at all, until two agree.
        """
        good: defaultdict[int, float] = defaultdict(float)
        bad: defaultdict[int, float] = defaultdict(float)
        own: list[tuple[float, float]] = [(0.0, 0.0), (0.0, 0.0)]
        own_bad = alone = 0.0
        for record, similarity in alike:
            weight = weigh_record(record, digest, now)
            value = VALUES[record.verdict] * similarity * weight
            if record.caller == self._caller:
                own.append((value, weight))
                own_bad = max(own_bad, -value)
                continue
            side = good if value > 0 else bad
            voice = find_voice(record.caller)
            side[voice] = max(side[voice], abs(value))
            if record.verdict != "corrected":
                alone = max(alone, -value / 2)
        blamed = nlargest(2, bad.values())
        agreed = blamed[1] if len(blamed) > 1 else 0.0
        praise = sum(nlargest(2, good.values())) / 2
        (first, weight), (second, _) = nlargest(2, own)
        own_good = min(weight, first + NEXT_RECORD * second)
        return max(own_good, praise) - max(own_bad, agreed, min(alone, BAD_ALONE))

    def _try_unproven(
        self, learned: list[RankedSkill], before: Sequence[RankedSkill], stems: Sequence[int]
    ) -> list[RankedSkill]:
        """Give the first place of some requests to an unproven skill whose card fits equally.

        The requests are drawn by their stems and the hour, so a repeated request finds the same order. Both
        skills may be called twice, and their agents are in one class of trust.
        """
        first = max(learned, key=lambda skill: skill.score)
        proven = self.parts.get((first.entry.id, first.skill_id))
        if proven is None or proven.calls < UNPROVEN or not self._is_drawn(stems):
            return learned
        order = choice_order(first.entry)
        for skill in nlargest(len(before), before, key=lambda skill: skill.score):
            if skill.score < FITS_EQUALLY * proven.card:
                break
            parts = self.parts.get((skill.entry.id, skill.skill_id))
            is_same = (skill.entry.id, skill.skill_id) == (first.entry.id, first.skill_id)
            is_proven = parts is not None and (parts.calls >= UNPROVEN or parts.receipts < 0.0)
            if is_same or is_proven or self._has_blame(skill):
                continue
            if choice_order(skill.entry) != order or not self._are_repeatable(first, skill):
                continue
            score = first.score * (1.0 + 1e-6)
            self.parts[skill.entry.id, skill.skill_id] = ScoreParts(
                skill.score, score - skill.score, 0.0 if parts is None else parts.calls, 0.0, is_tried=True
            )
            return [replace(one, score=score) if _is(one, skill) else one for one in learned]
        return learned

    def _has_blame(self, skill: RankedSkill) -> bool:
        """Whether a call of the skill failed or was wrong, for whatever request."""
        records = self._book.records_of(_key_of(skill))
        return any(VALUES[record.verdict] < 0 and self._counts_for(record) for record in records)

    def _is_drawn(self, stems: Sequence[int]) -> bool:
        text = f"{sorted(stems)} {int(self._clock() // _HOUR_S)}"
        return (self._hashes.of(text) % 10_000) / 10_000 < self._explored

    def _are_repeatable(self, *skills: RankedSkill) -> bool:
        facts = [self._find_digest(skill.entry, skill.skill_id) for skill in skills]
        return all(one is not None and one[1] for one in facts)


def _key_of(skill: RankedSkill) -> SkillKey:
    entry = skill.entry
    return SkillKey(entry.source, name_agent(entry.name, entry.id), skill.skill_id)


def _is_copy(rival: RankedSkill, first: RankedSkill) -> bool:
    """Whether the card of ``rival`` has most words of that of ``first``: the card tells no difference."""
    words, others = (frozenset(" ".join(one.text.fields[:OWN_FIELDS]).split()) for one in (first, rival))
    return len(words) >= _MIN_COPIED_STEMS and len(words & others) >= COPIED * len(words)


def _is(one: RankedSkill, other: RankedSkill) -> bool:
    return one.entry.id == other.entry.id and one.skill_id == other.skill_id
