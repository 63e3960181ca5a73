"""The cache of answers: for a time, up to a number and a size, the oldest first."""

from __future__ import annotations

from retinue.hub.orchestration.answer_cache import KEPT_ANSWERS, KEPT_BYTES, AnswerCache
from tests.requirements import requirement


class Clock:
    """A clock that is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@requirement("L-33")
def test_an_answer_is_kept_for_five_minutes() -> None:
    clock = Clock()
    cache = AnswerCache(clock=clock)
    cache.put("a", {"output": "x"})
    clock.now = 299.9
    assert cache.find("a") == {"output": "x"}
    clock.now = 300.0
    assert cache.find("a") is None


def test_of_more_than_a_hundred_answers_the_oldest_goes_first() -> None:
    cache = AnswerCache()
    for number in range(KEPT_ANSWERS + 1):
        cache.put(f"key {number}", {"output": number})
    assert cache.find("key 0") is None
    assert cache.find("key 1") == {"output": 1}
    assert cache.clear() == KEPT_ANSWERS
    assert cache.find("key 1") is None


def test_large_answers_make_room_and_too_large_ones_are_not_kept() -> None:
    half = {"output": "x" * (KEPT_BYTES // 2 - 100)}
    cache = AnswerCache()
    for name in ("first", "second", "third"):
        cache.put(name, half)
    assert cache.find("first") is None
    assert cache.find("third") == half
    cache.put("second", {"output": "x" * (KEPT_BYTES + 1)})
    assert cache.find("second") is None, "the earlier answer is outdated as well"
    assert cache.find("third") == half


def test_whoever_changes_an_answer_changes_not_the_kept_one() -> None:
    cache = AnswerCache()
    given = {"agents": ["a"]}
    cache.put("key", given)
    given["agents"].append("b")
    found = cache.find("key")
    assert found == {"agents": ["a"]}
    found["agents"].append("c")
    assert cache.find("key") == {"agents": ["a"]}
