"""The records of the history in memory, by skill and by stem, with the bounds of each caller."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from retinue.mesh.history.records import VALUES, Experience, SkillKey, find_voice
from retinue.mesh.history.slot_sets import SlotSets
from retinue.mesh.history.stem_counts import StemCounts

MAX_PER_CALLER = 24
"""Records of one skill that one caller has; the oldest are dropped."""

MAX_PER_SKILL = 96

MAX_RECORDS = 20_000

MAX_PER_VOICE = 2_000
"""Records of one caller; all members of the mesh that name themselves are one (`find_voice`)."""

CALLER_SHARE = 5.0
"""A caller counts as at most this many calls of one skill, however often it calls it."""

OTHER_DIGEST = 0.5
"""The weight of a call of the skill as it was defined before."""

HALF_LIFE_S = 90 * 86_400.0

_HOUR_S = 3_600.0


class ExperienceBook:
    """The records in memory, by skill and by stem."""

    def __init__(self) -> None:
        self._by_id: dict[str, Experience] = {}
        self._by_skill: defaultdict[SkillKey, dict[str, Experience]] = defaultdict(dict)
        self._slots: dict[str, int] = {}
        self._at_slot: list[Experience | None] = []
        self._voice_at_slot: list[int] = []
        self._free_slots: list[int] = []
        self._with_stem = SlotSets()
        self._of_speaker = SlotSets()
        """The slots of the records of each caller, and of each voice."""
        self.stem_counts = StemCounts()
        self._counts_by_voice: defaultdict[int, Counter[SkillKey]] = defaultdict(Counter)
        self._size_by_voice: Counter[int] = Counter()
        self._counts: defaultdict[SkillKey, dict[tuple[str, int | None], tuple[float, float]]]
        self._counts = defaultdict(dict)

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, record_id: str) -> Experience | None:
        """The record of this id."""
        return self._by_id.get(record_id)

    def list_all(self) -> Sequence[Experience]:
        """All records, in the order in which they came."""
        return tuple(self._by_id.values())

    def put(self, record: Experience) -> list[str]:
        """Add or replace a record; returns the ids of the records that are dropped for it."""
        self.remove(record.id)
        self._by_id[record.id] = record
        records = self._by_skill[record.key]
        records[record.id] = record
        voice = find_voice(record.caller)
        counts = self._counts_by_voice[voice]
        counts[record.key] += 1
        self._size_by_voice[voice] += 1
        self._take_slot(record, voice)
        self.stem_counts.add(record)
        self._counts.pop(record.key, None)
        dropped = [one.id for one in records.values() if one.caller == record.caller][:-MAX_PER_CALLER]
        for dropped_id in dropped:
            self.remove(dropped_id)
        while len(records) > MAX_PER_SKILL:
            voices = [find_voice(one.caller) for one in records.values()]
            most = Counter(voices).most_common(1)[0][0]
            dropped.append(list(records)[voices.index(most)])
            self.remove(dropped[-1])
        while self._size_by_voice[voice] > MAX_PER_VOICE:
            dropped.append(self._drop_one(voice))
        while len(self._by_id) > MAX_RECORDS:
            fullest = max(self._size_by_voice, key=self._size_by_voice.__getitem__)
            dropped.append(self._drop_one(fullest))
        return dropped

    def _drop_one(self, voice: int) -> str:
        """Remove the oldest record of the skill of which this caller has most, so that rare skills stay."""
        counts = self._counts_by_voice[voice]
        key = max(counts, key=counts.__getitem__)
        oldest = next(one.id for one in self._by_skill[key].values() if find_voice(one.caller) == voice)
        self.remove(oldest)
        return oldest

    def remove(self, record_id: str) -> None:
        """Remove a record; nothing for an unknown id."""
        record = self._by_id.pop(record_id, None)
        if record is None:
            return
        self.stem_counts.remove(record)
        voice = find_voice(record.caller)
        self._free_slot(record, voice)
        del self._by_skill[record.key][record_id]
        if not self._by_skill[record.key]:
            del self._by_skill[record.key]
        counts = self._counts_by_voice[voice]
        counts[record.key] -= 1
        if not counts[record.key]:
            del counts[record.key]
        self._size_by_voice[voice] -= 1
        if not counts:
            del self._counts_by_voice[voice], self._size_by_voice[voice]
        self._counts.pop(record.key, None)

    def _take_slot(self, record: Experience, voice: int) -> None:
        if self._free_slots:
            slot = self._free_slots.pop()
            self._at_slot[slot], self._voice_at_slot[slot] = record, voice
        else:
            slot = len(self._at_slot)
            self._at_slot.append(record)
            self._voice_at_slot.append(voice)
        self._slots[record.id] = slot
        for stem in record.stems:
            self._with_stem.add(stem, slot)
        for speaker in {record.caller, voice}:
            self._of_speaker.add(speaker, slot)

    def _free_slot(self, record: Experience, voice: int) -> None:
        slot = self._slots.pop(record.id)
        self._at_slot[slot] = None
        self._free_slots.append(slot)
        for stem in record.stems:
            self._with_stem.remove(stem, slot)
        for speaker in {record.caller, voice}:
            self._of_speaker.remove(speaker, slot)

    def clear(self) -> None:
        """Remove all records."""
        for held in (self._by_id, self._by_skill, self._counts_by_voice, self._size_by_voice):
            held.clear()
        self._counts.clear()
        self._slots.clear()
        self._at_slot.clear()
        self._voice_at_slot.clear()
        self._free_slots.clear()
        self._with_stem.clear()
        self._of_speaker.clear()
        self.stem_counts.clear()

    def records_of(self, key: SkillKey) -> Iterable[Experience]:
        """The records of one skill, oldest first."""
        records = self._by_skill.get(key)
        return () if records is None else records.values()

    def bits_with(self, stem: int) -> int:
        """The slots of the records of requests with this stem, as bits."""
        return self._with_stem.bits(stem)

    def bits_of(self, speaker: int) -> int:
        """The slots of the records of this caller or voice, as bits."""
        return self._of_speaker.bits(speaker)

    def records_at(self, slots: Iterable[int]) -> Sequence[Experience]:
        """The records at these slots."""
        return [record for slot in slots if (record := self._at_slot[slot]) is not None]

    def voices_at(self, slots: Iterable[int]) -> Iterator[int]:
        """The voices of the records at these slots."""
        return map(self._voice_at_slot.__getitem__, slots)

    def count_voices(self) -> int:
        """How many voices have records."""
        return len(self._counts_by_voice)

    def count_calls(self, key: SkillKey, digest: str, now: float, *, without: int | None = None) -> float:
        """The calls of a skill, decayed, each caller for `CALLER_SHARE` at most; kept for an hour.

        The calls of the caller ``without`` do not count.
        """
        known = self._counts[key].get((digest, without))
        if known is None or now - known[1] > _HOUR_S:
            records = (record for record in self.records_of(key) if record.caller != without)
            known = self._counts[key][digest, without] = count_calls(records, digest, now), now
        return known[0]


def count_calls(records: Iterable[Experience], digest: str, now: float) -> float:
    """As `ExperienceBook.count_calls`, of these records."""
    by_caller: defaultdict[int, float] = defaultdict(float)
    for record in records:
        if VALUES[record.verdict]:
            by_caller[find_voice(record.caller)] += weigh_record(record, digest, now)
    return sum(min(CALLER_SHARE, calls) for calls in by_caller.values())


def weigh_record(record: Experience, digest: str, now: float) -> float:
    """The weight of a record now, from 0 to 1."""
    weight: float = 0.5 ** (max(0.0, now - record.at) / HALF_LIFE_S)
    return weight if record.digest == digest else OTHER_DIGEST * weight
