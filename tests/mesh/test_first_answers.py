"""What the first message of an id began, and how long that is remembered."""

from __future__ import annotations

from retinue.mesh.first_answers import FirstAnswers, digest_content

ONE, OTHER = digest_content({"n": 1}), digest_content({"n": 2})


def test_equal_content_finds_the_first_and_other_content_takes_its_place() -> None:
    first: FirstAnswers[str] = FirstAnswers()
    first.put(("ann", "m"), ONE, "task")
    assert first.find(("ann", "m"), ONE) == "task"
    assert first.find(("bob", "m"), ONE) is None
    assert first.find(("ann", "m"), OTHER) is None
    first.put(("ann", "m"), OTHER, "other")
    first.end(("ann", "m"), "task", size_bytes=10**9)
    first.forget(("ann", "m"), "task")
    assert first.find(("ann", "m"), OTHER) == "other"
    first.forget(("ann", "m"), "other")
    assert first.find(("ann", "m"), OTHER) is None


def test_what_is_remembered_is_bounded_in_time_number_and_bytes() -> None:
    now = 0.0
    first: FirstAnswers[object] = FirstAnswers(kept_s=10, count=2, size_bytes=100, clock=lambda: now)
    tasks = {name: object() for name in "abcde"}

    def kept() -> str:
        return "".join(name for name in tasks if first.find((name,), ONE) is not None)

    for name in "abc":
        first.put((name,), ONE, tasks[name])
    assert kept() == "bc"
    first.end(("c",), tasks["c"], size_bytes=90)
    assert kept() == "bc"
    now = 5.0
    first.put(("d",), ONE, tasks["d"])
    first.end(("d",), tasks["d"], size_bytes=20)
    assert kept() == "d"
    now = 15.1
    assert kept() == ""
    first.put(("e",), ONE, tasks["e"])
    first.end(("e",), tasks["e"], size_bytes=101)
    assert kept() == ""


def test_the_order_of_keys_makes_no_other_content() -> None:
    assert digest_content({"a": 1, "b": 2}) == digest_content({"b": 2, "a": 1})
