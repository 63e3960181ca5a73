"""The records that are compared with a request are those that share most, of no caller too many."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.mesh.history.experience_book import MAX_PER_CALLER, ExperienceBook
from retinue.mesh.history.records import Experience, Hashes, SkillKey
from retinue.mesh.history.similar_records import MAX_ALIKE, MAX_ALIKE_PER_CALLER, SimilarRecords
from retinue.mesh.history.slot_sets import SlotSets, list_slots

ME, HIDDEN = 1000, 3
ASKED = {stem: 1.0 + stem / 7 for stem in range(12)}
HASHES = Hashes(b"k" * 64)


def record(number: int, stems: tuple[int, ...], caller: int, at: float = 0.0) -> Experience:
    key = SkillKey("home", f"agent-{number}", "skill")
    return Experience(f"r{number}", at or float(number), key, "d", stems, caller, "done")


def share(one: Experience) -> float:
    return sum(ASKED.get(stem, 0.0) for stem in one.stems)


def choose(book: ExperienceBook, *, only_own: bool = False, hidden: int | None = None) -> list[Experience]:
    return [*SimilarRecords(book, ASKED, ME, only_own=only_own, hidden=hidden).choose()]


def fill(book: ExperienceBook, draw: random.Random, records: int, callers: int) -> None:
    for number in range(records):
        stems = tuple(draw.sample(range(40), draw.randint(1, 8)))
        caller = ME if draw.random() < 0.2 else 2 * draw.randrange(callers) + 1
        book.put(record(number, stems, caller))
        if draw.random() < 0.3:
            book.remove(f"r{draw.randrange(number + 1)}")


@pytest.mark.parametrize("seed", range(4))
def test_of_few_callers_the_records_that_share_most_are_chosen(seed: int) -> None:
    book = ExperienceBook()
    fill(book, random.Random(seed), 2_500, 2)
    for hidden in (None, HIDDEN):
        chosen = choose(book, hidden=hidden)
        matching = [one for one in book.list_all() if share(one)]
        own = sorted((share(one) for one in matching if one.caller == ME), reverse=True)
        shares = sorted((share(one) for one in chosen if one.caller == ME), reverse=True)
        assert shares == pytest.approx(own[:MAX_ALIKE_PER_CALLER], abs=0.02)
        others: list[float] = []
        for caller in {one.caller for one in matching} - {ME, hidden}:
            of_caller = sorted((share(one) for one in matching if one.caller == caller), reverse=True)
            others += of_caller[:MAX_ALIKE_PER_CALLER]
        room = MAX_ALIKE - min(len(own), MAX_ALIKE_PER_CALLER)
        expected = sorted(others, reverse=True)[:room]
        shares = sorted((share(one) for one in chosen if one.caller != ME), reverse=True)
        assert shares == pytest.approx(expected, abs=0.02)
    assert {one.caller for one in choose(book, only_own=True)} == {ME}


def test_a_few_callers_with_better_matches_leave_room_for_the_others() -> None:
    book = ExperienceBook()
    for number in range(40):
        book.put(record(number, (number % 12,), 2 * number + 101))
    for number in range(3_000):
        book.put(record(100 + number, tuple(ASKED), 2 * (number % 5) + 1))
    counts = Counter(one.caller for one in choose(book))
    assert all(counts[2 * number + 101] == 1 for number in range(40))
    assert all(MAX_PER_CALLER <= counts[2 * number + 1] <= MAX_ALIKE_PER_CALLER for number in range(5))
    assert counts.total() == MAX_ALIKE


def test_members_of_the_mesh_share_the_place_of_one_caller() -> None:
    book = ExperienceBook()
    for number in range(1_000):
        book.put(record(number, tuple(ASKED), HASHES.of_caller(f"name-{number}", is_member=True)))
    assert len(choose(book)) == MAX_ALIKE_PER_CALLER


def test_of_equally_similar_records_each_caller_gives_its_newest() -> None:
    book = ExperienceBook()
    for number in range(1_800):
        book.put(record(number, (4,), 1 if number < 1_000 else 2 * (number % 300) + 5, 1.0 + number))
    chosen = choose(book)
    by_caller = Counter(one.caller for one in chosen)
    assert len(by_caller) == 301
    assert by_caller[1] >= MAX_ALIKE // 301
    oldest = {caller: min(one.at for one in chosen if one.caller == caller) for caller in by_caller}
    for one in book.list_all():
        if one not in chosen:
            assert one.at < oldest[one.caller]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 150)), max_size=400))
def test_sets_of_slots_hold_what_was_added_and_not_removed(steps: list[tuple[bool, int, int]]) -> None:
    sets, expected = SlotSets(), {key: set[int]() for key in range(3)}
    for slot in range(100):
        sets.add(2, slot)
        expected[2].add(slot)
    for adds, key, slot in steps:
        if adds:
            sets.add(key, slot)
            expected[key].add(slot)
        elif slot in expected[key]:
            sets.remove(key, slot)
            expected[key].remove(slot)
    for key, slots in expected.items():
        assert list_slots(sets.bits(key)) == sorted(slots)
    for key, slots in expected.items():
        for slot in slots:
            sets.remove(key, slot)
    assert not sets._few
    assert not sets._many
