"""Sets of small numbers by key, as bits of one integer, so that thousands are compared at once.

A set of few numbers is held as a set of Python: the bits up to its greatest number would take more memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

_MAX_FEW = 64
"""A set of more numbers is held as bits; one of half as many is a set of Python again."""


class SlotSets:
    """Sets of numbers from 0 on, by integers."""

    def __init__(self) -> None:
        self._few: defaultdict[int, set[int]] = defaultdict(set)
        self._many: dict[int, int] = {}

    def add(self, key: int, slot: int) -> None:
        """Add a number to the set of a key."""
        if key in self._many:
            self._many[key] |= 1 << slot
            return
        few = self._few[key]
        few.add(slot)
        if len(few) > _MAX_FEW:
            self._many[key] = self.bits(key)
            del self._few[key]

    def remove(self, key: int, slot: int) -> None:
        """Remove a number from the set of a key."""
        if key in self._many:
            self._many[key] &= ~(1 << slot)
            if self._many[key].bit_count() > _MAX_FEW // 2:
                return
            self._few[key] = set(list_slots(self._many.pop(key)))
        few = self._few[key]
        few.discard(slot)
        if not few:
            del self._few[key]

    def clear(self) -> None:
        """Remove all sets."""
        self._few.clear()
        self._many.clear()

    def bits(self, key: int) -> int:
        """The set of a key: bit n is set if it has the number n."""
        many = self._many.get(key)
        return set_bits(self._few.get(key, ())) if many is None else many


def set_bits(slots: Collection[int]) -> int:
    """An integer whose bits of these numbers are set."""
    content = bytearray(max(slots, default=0) // 8 + 1)
    for slot in slots:
        content[slot >> 3] |= 1 << (slot & 7)
    return int.from_bytes(content, "little")


def list_slots(bits: int) -> Sequence[int]:
    """The numbers of the bits that are set, in rising order."""
    digits, slots = bin(bits)[:1:-1], []
    slot = digits.find("1")
    while slot >= 0:
        slots.append(slot)
        slot = digits.find("1", slot + 1)
    return slots
