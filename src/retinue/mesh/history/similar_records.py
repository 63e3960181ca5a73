"""Finds the records whose requests share most with one request, also in a full history.

Each record has a slot, and the records of one stem are the bits of one integer. The worths of the stems are
added to all records at once, bit by bit: of the sums, plane ``n`` holds the bit of value ``2 ** n`` of every
record. So a search costs about the same for any number of records, and reads only those that it chooses.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from retinue.mesh.history.experience_book import MAX_PER_CALLER, ExperienceBook
from retinue.mesh.history.records import Experience
from retinue.mesh.history.slot_sets import list_slots, set_bits

MAX_ALIKE = 400
"""Records that are compared with one request: those that share most with it."""

MAX_ALIKE_PER_CALLER = 200
"""Records of one caller that are compared with one request."""

_WORTH_STEPS = 1023
"""The greatest worth of a stem as an integer; records whose sums differ by less share equally much."""


class SimilarRecords:
    """The records that share stems with one request, whose stems have these worths, for one caller.

    The records of ``hidden`` do not count, and with ``only_own`` those of no other caller.
    """

    def __init__(
        self,
        book: ExperienceBook,
        worths: Mapping[int, float],
        caller: int,
        *,
        only_own: bool,
        hidden: int | None,
    ) -> None:
        self._book = book
        self._planes: list[int] = []
        matched, greatest = 0, max(worths.values(), default=0.0)
        for stem, worth in worths.items():
            bits = book.bits_with(stem)
            if bits:
                matched |= bits
                self._add(bits, max(1, round(_WORTH_STEPS * worth / greatest)))
        of_caller = book.bits_of(caller)
        self._own = matched & of_caller
        self._others = 0 if only_own else matched & ~of_caller
        if hidden is not None:
            self._others &= ~book.bits_of(hidden)

    def choose(self) -> Sequence[Experience]:
        """The records that share most, at most `MAX_ALIKE`: own ones first, and so many of each other caller.

        Otherwise a caller with many records of similar requests would hide those of all others. So each other
        caller gets an equal share at first, and what is left goes to the most similar ones of all.
        """
        own = self._best(self._own, MAX_ALIKE_PER_CALLER)
        room = MAX_ALIKE - own.bit_count()
        equal = MAX_ALIKE // max(1, self._book.count_voices())
        share = min(MAX_ALIKE_PER_CALLER, max(MAX_PER_CALLER, equal))
        taken: Counter[int] = Counter()
        others = self._pick(self._others, room, share, taken)
        room -= others.bit_count()
        others |= self._pick(self._others & ~others, room, MAX_ALIKE_PER_CALLER, taken)
        return self._book.records_at([*list_slots(own), *list_slots(others)])

    def _add(self, bits: int, worth: int) -> None:
        """Add a worth to the sums of these records."""
        carry = place = 0
        while worth or carry:
            if place == len(self._planes):
                self._planes.append(0)
            held, added = self._planes[place], bits if worth & 1 else 0
            self._planes[place] = held ^ added ^ carry
            carry = (held & added) | (carry & (held ^ added))
            worth >>= 1
            place += 1

    def _pick(self, candidates: int, room: int, share: int, taken: Counter[int]) -> int:
        """The best ``room`` records, of each voice as many that it has ``share`` in ``taken``."""
        picked = 0
        while room and candidates:
            batch = self._best(candidates, room)
            candidates ^= batch
            counts = Counter(self._book.voices_at(list_slots(batch)))
            for voice, count in counts.items():
                left = max(0, share - taken[voice])
                taken[voice] += min(count, left)
                if count >= left:
                    of_voice = self._book.bits_of(voice)
                    candidates &= ~of_voice
                    spare = batch & of_voice
                    batch ^= spare ^ self._best(spare, left)
            picked |= batch
            room -= batch.bit_count()
        return picked

    def _best(self, candidates: int, room: int) -> int:
        """The ``room`` records with the greatest sums; of equal ones a share of each voice."""
        best = 0
        for plane in reversed(self._planes):
            upper = candidates & plane
            count = upper.bit_count()
            if count > room:
                candidates = upper
            else:
                best |= upper
                candidates ^= upper
                room -= count
        if candidates.bit_count() <= room:
            return best | candidates
        return best | self._share(candidates, room) if room else best

    def _share(self, candidates: int, room: int) -> int:
        """Of these records ``room``: the newest ones of each voice, of all as equally many as can be."""
        slots = list_slots(candidates)
        records = sorted(zip(self._book.records_at(slots), slots, strict=True), key=_age)
        by_voice: defaultdict[int, list[int]] = defaultdict(list)
        newest = [slot for _, slot in records]
        for slot, voice in zip(newest, self._book.voices_at(newest), strict=True):
            by_voice[voice].append(slot)
        voices = sorted(list(by_voice.values())[:room], key=len)
        chosen: list[int] = []
        for number, held in enumerate(voices):
            chosen += held[: (room - len(chosen)) // (len(voices) - number)]
        return set_bits(chosen)


def _age(place: tuple[Experience, int]) -> float:
    return -place[0].at
