"""Dataclasses of the hot path: made as fast as plain ones, and otherwise as frozen ones."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest

from retinue.core.call import Hop, TraceContext


def test_equal_ones_are_one_key() -> None:
    assert {Hop("a", "s"): 1, Hop("a", "s"): 2} == {Hop("a", "s"): 2}
    assert Hop("a", "s") != Hop("a", "t")


def test_they_are_copied_and_replaced_as_any_dataclass() -> None:
    trace = TraceContext("1", path=(Hop("a", "s"),))
    assert replace(trace, depth=2) == TraceContext("1", depth=2, path=(Hop("a", "s"),))
    assert copy.deepcopy(trace) == trace
    assert pickle.loads(pickle.dumps(trace)) == trace


def test_they_have_no_room_for_other_attributes() -> None:
    with pytest.raises(AttributeError):
        Hop("a", "s").other = 1  # type: ignore[attr-defined]
