"""How many skills were asked for with a stem: the fewer, the more the stem tells.

A caller that calls many skills with one stem would make it common for everybody. So its own records count in
full for itself, and those of each other caller for `STEM_SHARE` skills at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from retinue.mesh.history.records import Experience, SkillKey, find_voice

STEM_SHARE = 3
"""Skills by which one other caller makes a stem more common."""

SKILLS_SHARE = 100
"""Skills of one other caller that count as asked for at all."""

K = TypeVar("K")

Stem = int | None
"""The hash of a stem; None stands for any request."""

S = TypeVar("S", bound=Stem)


@dataclass(slots=True)
class _Uses:
    """The uses of one stem: records by skill, and by caller and skill; skills by caller.

    A caller is also its voice (`find_voice`). ``bounded`` is the sum of the skills of all voices, each within
    ``bound``.
    """

    bound: int
    by_skill: Counter[SkillKey] = field(default_factory=Counter)
    by_speaker: Counter[tuple[int, SkillKey]] = field(default_factory=Counter)
    skills: Counter[int] = field(default_factory=Counter)
    bounded: int = 0

    def add(self, record: Experience, voice: int) -> None:
        self.by_skill[record.key] += 1
        for speaker in {record.caller, voice}:
            self.by_speaker[speaker, record.key] += 1
            if self.by_speaker[speaker, record.key] == 1:
                self.skills[speaker] += 1
                self.bounded += speaker == voice and self.skills[speaker] <= self.bound

    def remove(self, record: Experience, voice: int) -> None:
        _take(self.by_skill, record.key)
        for speaker in {record.caller, voice}:
            if not _take(self.by_speaker, (speaker, record.key)):
                left = _take(self.skills, speaker)
                self.bounded -= speaker == voice and left < self.bound


class StemCounts:
    """The skills of records by stem, in all and for each caller."""

    def __init__(self) -> None:
        self._uses: dict[Stem, _Uses] = {}

    def add(self, record: Experience) -> None:
        """Count one record."""
        voice = find_voice(record.caller)
        for stem in (None, *record.stems):
            uses = self._uses.get(stem)
            if uses is None:
                uses = self._uses[stem] = _Uses(SKILLS_SHARE if stem is None else STEM_SHARE)
            uses.add(record, voice)

    def remove(self, record: Experience) -> None:
        """Count a record no more."""
        voice = find_voice(record.caller)
        for stem in (None, *record.stems):
            uses = self._uses[stem]
            uses.remove(record, voice)
            if not uses.by_skill:
                del self._uses[stem]

    def clear(self) -> None:
        """Forget all records."""
        self._uses.clear()

    def count(self, stem: Stem, caller: int, only_own: bool = False, without: int | None = None) -> int:
        """The skills that were asked for with a stem, as they count for this caller.

        With ``only_own`` its own records count alone, and those of ``without``, who is no member, never.
        """
        return self.count_each((stem,), caller, only_own, without)[stem]

    def count_each(
        self, stems: Iterable[S], caller: int, only_own: bool = False, without: int | None = None
    ) -> dict[S, int]:
        """As `count`, of each of these stems; a search asks for about a thousand."""
        is_voice, uses_by_stem = caller == find_voice(caller), self._uses
        counts: dict[S, int] = {}
        for stem in stems:
            uses = uses_by_stem.get(stem)
            if uses is None:
                counts[stem] = 0
                continue
            own, count = uses.skills.get(caller, 0), len(uses.by_skill)
            if not only_own and own != count:
                others = uses.bounded
                if own and is_voice:
                    others -= min(uses.bound, own)
                if without is not None:
                    others -= min(uses.bound, uses.skills.get(without, 0))
                own = min(count, own + others)
            counts[stem] = own
        return counts


def _take(counts: Counter[K], key: K) -> int:
    """Take one from a count; returns what is left, and removes a count of 0."""
    counts[key] -= 1
    left = counts[key]
    if not left:
        del counts[key]
    return left
