"""How many skills were asked for with a stem: the fewer, the more the stem tells.

A caller that calls many skills with one stem would make it common for everybody. So its own records count in
full for itself, and those of each other caller for `STEM_SHARE` skills at most.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar, cast

from retinue.mesh.history.records import Experience, SkillKey, find_voice

STEM_SHARE = 3
"""Skills by which one other caller makes a stem more common."""

SKILLS_SHARE = 100
"""Skills of one other caller that count as asked for at all."""

K = TypeVar("K")

Stem = int | None
"""The hash of a stem; None stands for any request."""

S = TypeVar("S", bound=Stem)

_NOTHING: Counter[Stem] = Counter()


@dataclass(slots=True)
class _Uses:
    """The uses of one stem: records by skill, and by caller and skill.

    A caller is also its voice (`find_voice`). ``bounded`` is the sum of the skills of all voices, each within
    ``bound``.
    """

    bound: int
    by_skill: Counter[SkillKey] = field(default_factory=Counter)
    by_speaker: Counter[tuple[int, SkillKey]] = field(default_factory=Counter)
    bounded: int = 0


class StemCounts:
    """The skills of records by stem, in all and for each caller."""

    def __init__(self) -> None:
        self._uses: dict[Stem, _Uses] = {}
        self._skills: defaultdict[int, Counter[Stem]] = defaultdict(Counter)
        """The number of skills that a caller or a voice asked for, by stem."""
        self._for_strangers: dict[Stem, int] = {}
        """`count` for a caller without records, because a search asks for about a thousand stems."""

    def add(self, record: Experience) -> None:
        """Count one record."""
        voice = find_voice(record.caller)
        for stem in (None, *record.stems):
            uses = self._uses.get(stem)
            if uses is None:
                uses = self._uses[stem] = _Uses(SKILLS_SHARE if stem is None else STEM_SHARE)
            uses.by_skill[record.key] += 1
            for speaker in {record.caller, voice}:
                uses.by_speaker[speaker, record.key] += 1
                if uses.by_speaker[speaker, record.key] == 1:
                    skills = self._skills[speaker]
                    skills[stem] += 1
                    uses.bounded += speaker == voice and skills[stem] <= uses.bound
            self._for_strangers[stem] = min(len(uses.by_skill), uses.bounded)

    def remove(self, record: Experience) -> None:
        """Count a record no more."""
        voice = find_voice(record.caller)
        for stem in (None, *record.stems):
            uses = self._uses[stem]
            _take(uses.by_skill, record.key)
            for speaker in {record.caller, voice}:
                if not _take(uses.by_speaker, (speaker, record.key)):
                    left = _take(self._skills[speaker], stem)
                    uses.bounded -= speaker == voice and left < uses.bound
            self._for_strangers[stem] = min(len(uses.by_skill), uses.bounded)
            if not uses.by_skill:
                del self._uses[stem], self._for_strangers[stem]
        for speaker in {record.caller, voice}:
            if not self._skills[speaker]:
                del self._skills[speaker]

    def clear(self) -> None:
        """Forget all records."""
        for held in (self._uses, self._skills, self._for_strangers):
            held.clear()

    def count(
        self, stems: Iterable[S], caller: int, only_own: bool = False, without: int | None = None
    ) -> dict[S, int]:
        """The skills that were asked for with each of these stems, as they count for this caller.

        With ``only_own`` its own records count alone, and those of ``without``, who is no member, never.
        """
        own = self._skills.get(caller, _NOTHING)
        if only_own:
            return {stem: own[stem] for stem in stems}
        ignored = _NOTHING if without is None else self._skills.get(without, _NOTHING)
        counts = {stem: self._for_strangers.get(stem, 0) for stem in stems}
        for stem in {*(own.keys() & counts.keys()), *(ignored.keys() & counts.keys())}:
            uses = self._uses[stem]
            others = uses.bounded - min(uses.bound, ignored[stem])
            if caller == find_voice(caller):
                others -= min(uses.bound, own[stem])
            counts[cast(S, stem)] = min(len(uses.by_skill), own[stem] + others)
        return counts


def _take(counts: Counter[K], key: K) -> int:
    """Take one from a count; returns what is left, and removes a count of 0."""
    counts[key] -= 1
    left = counts[key]
    if not left:
        del counts[key]
    return left
