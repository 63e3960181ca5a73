"""Which listings have a word: a dict of sets, but for the many words that one listing alone has."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from retinue.core.record import ListingKey


class Postings:
    """Identities of listings by a word, in the order in which they came."""

    __slots__ = ("_by_word",)

    def __init__(self) -> None:
        # A set of its own for each of half a million skills would take a kilobyte per agent.
        self._by_word: dict[str, ListingKey | dict[ListingKey, None]] = {}

    def __contains__(self, word: str) -> bool:
        return word in self._by_word

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_word)

    def __len__(self) -> int:
        return len(self._by_word)

    def list_of(self, word: str) -> Collection[ListingKey]:
        """The listings with this word; not to be kept beyond the next change."""
        held = self._by_word.get(word)
        if held is None:
            return ()
        return held if isinstance(held, dict) else (held,)

    def put(self, word: str, listing_id: ListingKey) -> None:
        held = self._by_word.get(word)
        if held is None:
            self._by_word[word] = listing_id
        elif isinstance(held, dict):
            held[listing_id] = None
        elif held != listing_id:
            self._by_word[word] = {held: None, listing_id: None}

    def remove(self, word: str, listing_id: ListingKey) -> None:
        held = self._by_word.get(word)
        if isinstance(held, dict):
            held.pop(listing_id, None)
            if len(held) == 1:
                (self._by_word[word],) = held
        elif held == listing_id:
            del self._by_word[word]
