"""Leases: who lives, and to whom the runs of the dead go."""

from __future__ import annotations

from retinue.workflows.durable.nodes import _share_out


def test_outermost_runs_go_round_and_take_with_them_what_is_below() -> None:
    runs = ["a", "a/x", "b", "c", "c/x", "c/x/y", "d/only"]
    assert _share_out(runs, ["one", "two"]) == {
        "one": ["a", "a/x", "c", "c/x", "c/x/y"],
        "two": ["b", "d/only"],
    }


def test_nobody_gets_the_runs_when_nobody_lives() -> None:
    assert _share_out(["a"], []) == {}
