"""What a node remembers of others: who was heard lately, which signatures came, what was forgotten."""

from __future__ import annotations

import time
from typing import Final

from retinue.koi.cache import KoiCache
from retinue.koi.rules import FORGOTTEN, SEEN_S

_MAX_HEARD: Final = 10_000
_MAX_FORGOTTEN: Final = 10_000
_MAX_SIGNATURES: Final = 5_000
_SIGNATURE: Final = "signature:"


class NodeMemory:
    """What one node remembers; signatures and forgotten states are in the cache, and survive a restart."""

    def __init__(self, own_rid: str, cache: KoiCache) -> None:
        self._own_rid = own_rid
        self._cache = cache
        self._heard: dict[str, float] = {}
        self._signatures: dict[str, None] = {}
        self._forgotten: dict[str, None] = {}
        """Keys of the cache's notes, the oldest first."""

    def load(self) -> None:
        """Read the notes of the cache."""
        for key in self._cache.notes:
            kind = self._signatures if key.startswith(_SIGNATURE) else self._forgotten
            kind[key] = None

    def hear(self, rid: str) -> None:
        """Note that a node has just answered or sent a signed request."""
        self._heard[rid] = time.monotonic()
        if len(self._heard) > _MAX_HEARD:
            del self._heard[min(self._heard, key=self._heard.__getitem__)]

    def was_seen(self, rid: str) -> bool:
        """Whether a node was heard within `SEEN_S`; this one always was."""
        if rid == self._own_rid:
            return True
        heard = self._heard.get(rid)
        return heard is not None and time.monotonic() - heard < SEEN_S

    def note_signature(self, signature_id: str) -> bool:
        """Whether a signed message that takes something away came before; from now on it has.

        Raises StateError.
        """
        key = f"{_SIGNATURE}{signature_id}"
        if key in self._signatures:
            return True
        self._keep_note(self._signatures, key, 1, _MAX_SIGNATURES)
        return False

    def note_forgotten(self, rid: str, instant_us: int) -> None:
        """Note the time of the last state of what was forgotten. Raises StateError."""
        self._keep_note(self._forgotten, f"{FORGOTTEN}{rid}", instant_us, _MAX_FORGOTTEN)

    def drop_forgotten(self, rid: str) -> None:
        """What was forgotten is there again, in a later state. Raises StateError."""
        key = f"{FORGOTTEN}{rid}"
        if key in self._forgotten:
            self._cache.note(key, None)
            del self._forgotten[key]

    def _keep_note(self, kept: dict[str, None], key: str, value: int, limit: int) -> None:
        """Keep a note in the cache; the oldest of its kind goes."""
        self._cache.note(key, value)
        kept[key] = None
        if len(kept) > limit:
            oldest = next(iter(kept))
            self._cache.note(oldest, None)
            del kept[oldest]
