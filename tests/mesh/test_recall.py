"""The listings that were wanted last."""

from __future__ import annotations

from dataclasses import replace

from retinue.mesh.entry import entry_of
from retinue.mesh.recall import Recall
from tests.mesh.scripted import make_listing

A, B, C = (make_listing(name) for name in "abc")


def test_the_one_that_was_not_asked_for_longest_makes_room() -> None:
    recall = Recall(keep=2)
    recall.put(A)
    recall.put(B)
    assert recall.find(A.id) is A
    recall.put(C)
    assert [recall.find(one.id) for one in (A, B, C)] == [A, None, C]


def test_what_is_new_displaces_nothing_but_its_own_former_self() -> None:
    recall = Recall(keep=2)
    for listing in (A, B, C):
        recall.renew(listing)
    assert [recall.find(one.id) for one in (A, B, C)] == [A, B, None]
    newer = replace(A, digest="sha256:2")
    recall.renew(newer)
    assert recall.find(A.id) is newer
    recall.remove(A.id)
    assert recall.find(A.id) is None


def test_it_follows_what_is_measured() -> None:
    recall = Recall()
    recall.put(A)
    ill = replace(A, reachable=False, last_error="refused")
    recall.note(entry_of(ill))
    recall.note(entry_of(B))
    assert recall.find(A.id) == ill
    assert recall.find(B.id) is None
