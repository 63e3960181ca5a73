from __future__ import annotations

import pytest

from retinue.mesh.history.records import Experience, SkillKey
from retinue.mesh.history.request_likelihood import NOTHING_SERVED, Served, count_served, likelihood

ANNA, BEN = 2, 4
KEY = SkillKey("home", "routes", "plan_route")


def record(number: int, caller: int, *stems: int) -> Experience:
    return Experience(f"r{number}", 0.0, KEY, "d", stems, caller, "done")


def test_own_calls_count_in_full_and_those_of_another_caller_half_up_to_five() -> None:
    own = [record(number, ANNA, 1) for number in range(20)]
    few = [record(number, BEN, 1, 7) for number in range(20, 24)]
    many = [record(number, BEN, 1) for number in range(20, 44)]
    stems = frozenset({1, 2})
    assert count_served(own, stems, ANNA) == Served(20.0, {1: 20.0})
    assert count_served(few, stems, ANNA) == Served(2.0, {1: 2.0})
    flood = count_served(many, stems, ANNA)
    assert [flood.calls, flood.counts[1]] == pytest.approx([2.5, 2.5])


def test_words_of_the_card_and_of_served_requests_make_a_request_likelier() -> None:
    common = {1: 0.1, 2: 0.1}
    alone = likelihood({}, NOTHING_SERVED, common)
    assert likelihood({1: 1.0}, NOTHING_SERVED, common) > alone
    assert likelihood({}, Served(5.0, {1: 5.0}), common) > alone


def test_a_word_that_nothing_speaks_of_weighs_the_same_for_any_number_of_calls() -> None:
    common = {1: 0.1}
    assert likelihood({}, Served(20.0, {}), common) == pytest.approx(likelihood({}, NOTHING_SERVED, common))


def test_a_word_that_many_skills_are_asked_for_with_tells_less_than_a_rare_one() -> None:
    def gain(share: float) -> float:
        return likelihood({1: 1.0}, NOTHING_SERVED, {1: share}) - likelihood({}, NOTHING_SERVED, {1: share})

    assert gain(0.01) > gain(0.5) > 0.0
