"""Did you mean."""

from __future__ import annotations

import pytest

from retinue.core import text
from retinue.core.text import suggest

SKILLS = ["create_plan", "generate_code", "review_code", "read_docs"]


def test_a_slip_of_typing_finds_the_name() -> None:
    assert suggest("craete_plan", SKILLS) == ("create_plan",)
    assert suggest("Create-Plan", SKILLS) == ("create_plan",)


def test_a_part_of_names_finds_them_all() -> None:
    assert suggest("code", SKILLS) == ("generate_code", "review_code")


def test_nothing_near_gives_nothing() -> None:
    assert suggest("zzz", SKILLS) == ()
    assert suggest("x", SKILLS) == ()
    assert suggest("create_plan", []) == ()


def test_no_more_than_asked_for_come_nearest_first() -> None:
    assert suggest("skill-1", [f"skill-{i}" for i in range(9)] + ["skill_1x"], limit=2)[0] == "skill-1"
    assert len(suggest("skill-1", [f"skill-{i}" for i in range(9)], limit=2)) == 2


def test_of_very_many_names_those_with_the_same_first_letter_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(text, "MAX_COMPARED", 2)
    assert suggest("Craete_plan", ["read_docs", "Create_plan", "x_create_plan", "create_plans", "c"]) == (
        "Create_plan",
        "create_plans",
    )
    assert suggest("craete_plan", ["a", "b", "c", "d", "create_plan"]) == ("create_plan",)
