"""Remembers contacts with other nodes, signed messages and forgotten objects."""

from __future__ import annotations

import time
from typing import Final

from retinue_koi.rules import FORGOTTEN, SEEN_S
from retinue_koi.storage.cache import KoiCache

_MAX_HEARD: Final = 10_000
_MAX_FORGOTTEN: Final = 10_000
_MAX_PROVED: Final = 10_000
MAX_SIGNATURES: Final = 10_000
MAX_SIGNATURES_OF_ONE: Final = 1_000
_SIGNATURE: Final = "signature:"
_PROVED: Final = "proved:"


class NodeMemory:
    """The memory of one node. All but the times of contact is in the cache and survives a restart."""

    def __init__(
        self,
        own_rid: str,
        cache: KoiCache,
        *,
        seen_s: float = SEEN_S,
        max_signatures: int = MAX_SIGNATURES,
        max_signatures_of_one: int = MAX_SIGNATURES_OF_ONE,
    ) -> None:
        self.seen_s = seen_s
        """How long a node counts as seen after it was heard."""
        self._own_rid = own_rid
        self._cache = cache
        self._max_signatures = max_signatures
        self._max_signatures_of_one = max_signatures_of_one
        self._heard: dict[str, float] = {}
        self._signatures: dict[str, dict[str, None]] = {}
        """Sender → keys of the cache's notes, the oldest first."""
        self._signatures_kept = 0
        self._forgotten: dict[str, None] = {}
        self._proved: dict[str, None] = {}

    def load(self) -> None:
        """Read the notes of the cache."""
        for key in self._cache.notes:
            if key.startswith(_SIGNATURE):
                sender = key.removeprefix(_SIGNATURE).rpartition(":")[0]
                self._signatures.setdefault(sender, {})[key] = None
                self._signatures_kept += 1
            elif key.startswith(_PROVED):
                self._proved[key] = None
            elif key.startswith(FORGOTTEN):
                self._forgotten[key] = None

    def hear(self, rid: str) -> None:
        """Note that a node has just answered or sent a signed request."""
        self._heard[rid] = time.monotonic()
        if len(self._heard) > _MAX_HEARD:
            del self._heard[min(self._heard, key=self._heard.__getitem__)]

    def was_seen(self, rid: str, *, within_s: float | None = None) -> bool:
        """Whether a node was heard within this time, by default `seen_s`; this one always was."""
        if rid == self._own_rid:
            return True
        heard = self._heard.get(rid)
        within_s = self.seen_s if within_s is None else within_s
        return heard is not None and time.monotonic() - heard < within_s

    def has_proved(self, rid: str) -> bool:
        """Whether a node has signed a message, because an unsigned one is not from it."""
        return f"{_PROVED}{rid}" in self._proved

    def note_proof(self, rid: str) -> None:
        """Note that a node has signed a message. Raises StateError."""
        key = f"{_PROVED}{rid}"
        if key in self._proved:
            return
        self._cache.note(key, 1)
        self._proved[key] = None
        if len(self._proved) > _MAX_PROVED:
            others = (known_key for known_key in self._proved if known_key != key)
            gone = next(
                (known_key for known_key in others if known_key.removeprefix(_PROVED) not in self._cache),
                None,
            )
            if gone is not None:  # those of nodes in the cache stay; the cache has a limit of its own
                self._cache.note(gone, None)
                del self._proved[gone]

    def has_signature(self, sender: str, signature_id: str) -> bool:
        """Whether a signed message that takes something away was taken before."""
        return f"{_SIGNATURE}{sender}:{signature_id}" in self._signatures.get(sender, {})

    def note_signature(self, sender: str, signature_id: str) -> None:
        """Note that such a message was taken. Raises StateError.

        Each sender has a limit. Beyond the limit of all, the oldest of the sender with the most goes, so
        that no node can push out the signatures of another.
        """
        key = f"{_SIGNATURE}{sender}:{signature_id}"
        self._cache.note(key, 1)
        of_sender = self._signatures.setdefault(sender, {})
        self._signatures_kept += key not in of_sender
        of_sender[key] = None
        if len(of_sender) > self._max_signatures_of_one:
            self._drop_signature(sender)
        elif self._signatures_kept > self._max_signatures:
            self._drop_signature(max(self._signatures, key=lambda signer: len(self._signatures[signer])))

    def _drop_signature(self, sender: str) -> None:
        of_sender = self._signatures[sender]
        oldest = next(iter(of_sender))
        self._cache.note(oldest, None)
        del of_sender[oldest]
        self._signatures_kept -= 1
        if not of_sender:
            del self._signatures[sender]

    def note_forgotten(self, rid: str, instant_us: int) -> None:
        """Note the time of the last state of a forgotten object. Raises StateError."""
        key = f"{FORGOTTEN}{rid}"
        self._cache.note(key, instant_us)
        self._forgotten[key] = None
        if len(self._forgotten) > _MAX_FORGOTTEN:
            oldest = next(iter(self._forgotten))
            self._cache.note(oldest, None)
            del self._forgotten[oldest]

    def drop_forgotten(self, rid: str) -> None:
        """Note that a forgotten object is there again, in a later state. Raises StateError."""
        key = f"{FORGOTTEN}{rid}"
        if key in self._forgotten:
            self._cache.note(key, None)
            del self._forgotten[key]
