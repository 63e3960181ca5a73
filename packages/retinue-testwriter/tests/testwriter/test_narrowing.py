from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retinue_testwriter.notes import Narrowing, merge_narrowing, parse_narrowing, render_narrowing

NARROWINGS = st.dictionaries(
    st.text(min_size=1, max_size=8),
    st.builds(
        Narrowing,
        allow=st.dictionaries(st.sampled_from(["ValueError", "KeyError"]), st.text(max_size=8)),
        drop=st.lists(st.sampled_from(["assert x", "assert y == 1"]), unique=True).map(tuple),
        known=st.lists(st.just("OSError"), max_size=1).map(tuple),
        examples=st.integers(0, 999),
        leave_out=st.text(max_size=8),
    ),
    max_size=3,
)


@given(NARROWINGS)
def test_what_is_written_is_read_back(narrowing: dict[str, Narrowing]) -> None:
    assert parse_narrowing(render_narrowing(narrowing)) == narrowing


@given(st.recursive(st.none() | st.text() | st.integers(), lambda i: st.dictionaries(st.text(), i)))
def test_whatever_else_stands_there_is_ignored(described: object) -> None:
    assert all(isinstance(entry, Narrowing) for entry in parse_narrowing(described).values())


def test_a_later_narrowing_adds_to_the_earlier_one() -> None:
    earlier = {"test_a": Narrowing(allow={"KeyError": "f(1)"}), "test_b": Narrowing(examples=20)}
    later = {"test_a": Narrowing(drop=("assert result",)), "test_c": Narrowing(leave_out="slow")}
    assert merge_narrowing(earlier, later) == {
        "test_a": Narrowing(allow={"KeyError": "f(1)"}, drop=("assert result",)),
        "test_b": Narrowing(examples=20),
        "test_c": Narrowing(leave_out="slow"),
    }


def test_a_withdrawn_statement_is_known_in_any_spelling() -> None:
    change = Narrowing(drop=("assert f('a') == ['b']",))
    assert change.drops('assert f("a") == [\n    "b"\n]')
    assert not change.drops("assert f('a') == ['c']")


def test_an_exception_that_turns_out_to_be_documented_is_no_finding_any_more() -> None:
    merged = Narrowing(allow={"KeyError": "f(1)"}).merge(Narrowing(known=("KeyError",)))
    assert merged == Narrowing(known=("KeyError",))
