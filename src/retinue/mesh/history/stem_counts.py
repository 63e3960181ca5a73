"""How many skills were asked for with a stem: the fewer, the more the stem tells.

A caller that calls many skills with one stem would make it common for everybody. So its own records count in
full for itself, and those of each other caller for `STEM_SHARE` skills at most.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TypeVar

from retinue.mesh.history.records import Experience, SkillKey, find_voice

STEM_SHARE = 3
"""Skills by which one other caller makes a stem more common."""

SKILLS_SHARE = 100
"""Skills of one other caller that count as asked for at all."""

K = TypeVar("K")

Stem = int | None
"""The hash of a stem; None stands for any request."""


class StemCounts:
    """The skills of records by stem, in all and for each caller."""

    def __init__(self) -> None:
        self._all: defaultdict[Stem, Counter[SkillKey]] = defaultdict(Counter)
        self._records: Counter[tuple[Stem, int, SkillKey]] = Counter()
        self._skills: Counter[tuple[Stem, int]] = Counter()
        """The number of skills by stem and caller, or voice (`find_voice`)."""
        self._bounded: Counter[Stem] = Counter()
        """The sum over all voices, each within its bound."""

    def add(self, record: Experience) -> None:
        """Count one record."""
        voice = find_voice(record.caller)
        for stem in (None, *record.stems):
            self._all[stem][record.key] += 1
            for speaker in {record.caller, voice}:
                self._records[stem, speaker, record.key] += 1
                if self._records[stem, speaker, record.key] > 1:
                    continue
                self._skills[stem, speaker] += 1
                if speaker == voice and self._skills[stem, speaker] <= _bound(stem):
                    self._bounded[stem] += 1

    def remove(self, record: Experience) -> None:
        """Count a record no more."""
        voice = find_voice(record.caller)
        for stem in (None, *record.stems):
            _take(self._all[stem], record.key)
            if not self._all[stem]:
                del self._all[stem]
            for speaker in {record.caller, voice}:
                if _take(self._records, (stem, speaker, record.key)):
                    continue
                if _take(self._skills, (stem, speaker)) < _bound(stem) and speaker == voice:
                    _take(self._bounded, stem)

    def clear(self) -> None:
        """Forget all records."""
        for counts in (self._all, self._records, self._skills, self._bounded):
            counts.clear()

    def count(self, stem: Stem, caller: int, *, only_own: bool = False, without: int | None = None) -> int:
        """The skills that were asked for with a stem, as they count for this caller.

        With ``only_own`` its own records count alone, and those of the caller ``without`` never.
        """
        own = self._skills.get((stem, caller), 0)
        if only_own:
            return own
        others = self._bounded.get(stem, 0)
        for voice in {caller, without}:
            if voice is not None and voice == find_voice(voice):
                others -= min(_bound(stem), self._skills.get((stem, voice), 0))
        return min(len(self._all.get(stem, ())), own + others)


def _bound(stem: Stem) -> int:
    return SKILLS_SHARE if stem is None else STEM_SHARE


def _take(counts: Counter[K], key: K) -> int:
    """Take one from a count; returns what is left, and removes a count of 0."""
    counts[key] -= 1
    left = counts[key]
    if not left:
        del counts[key]
    return left
