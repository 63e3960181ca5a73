"""Words and the listings that have them, one or many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retinue.core.record import ListingKey
from retinue.mesh.directory.listing_index import Postings

CHANGES = st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), st.integers(0, 3)))


@given(CHANGES)
def test_they_hold_what_sets_would(changes: list[tuple[bool, str, int]]) -> None:
    postings = Postings()
    plain: dict[str, set[ListingKey]] = {}
    for put, word, number in changes:
        listing_id = ListingKey("home", str(number))
        if put:
            postings.put(word, listing_id)
            plain.setdefault(word, set()).add(listing_id)
        else:
            postings.remove(word, listing_id)
            plain.get(word, set()).discard(listing_id)
        held = {word: ids for word, ids in plain.items() if ids}
        assert set(postings) == held.keys()
        assert len(postings) == len(held)
        for one in "ab":
            assert set(postings.list_of(one)) == held.get(one, set())
            assert len(postings.list_of(one)) == len(held.get(one, ()))
            assert (one in postings) == (one in held)
