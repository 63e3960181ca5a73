"""Values of a request are told by their form, and choose between skills by their parameters."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.record import AgentRecord, Listing, Skill
from retinue.mesh.search.ranking import rank_skills
from retinue.mesh.search.values import list_value_kinds, share_taken

KINDS = {"mail", "address", "path", "date", "quoted", "number"}


@pytest.mark.parametrize(
    ("request_text", "kinds"),
    [
        ('Send "hello there" to bob@x.org tomorrow at 9:30', {"quoted", "mail", "date"}),
        ("Read ~/notes/a.md and www.example.org/a 15 times", {"path", "address", "number"}),
        ("open report.pdf", {"path"}),
        ("what is on example.com", {"address"}),
        ("meet on 2026-05-01", {"date"}),
        ("plan the tests of Bob's team", set()),
        ("version v2 of a4 paper", set()),
        ("", set()),
    ],
)
def test_the_kinds_of_values_are_told_by_their_form(request_text: str, kinds: set[str]) -> None:
    assert list_value_kinds(request_text) == kinds


@given(st.text(max_size=300))
def test_any_text_has_some_kinds_of_values_or_none(text: str) -> None:
    assert list_value_kinds(text) <= KINDS


@pytest.mark.parametrize(
    "text", ["1" * 9_000 + "x", "1," * 4_000 + "x", "a" * 9_000, '"' * 9_000, "a.b@" * 2_000]
)
def test_a_long_request_is_read_in_little_time(text: str) -> None:
    began = time.process_time()
    list_value_kinds(text)
    assert time.process_time() - began < 0.5


def test_of_two_skills_with_the_same_words_the_one_that_takes_the_value_is_first() -> None:
    def offer(key: str, parameter: str) -> Listing:
        schema = {"type": "object", "properties": {parameter: {"type": "string"}}}
        skill = Skill("invite", "Invites a person to the team", input_schema=schema)
        return Listing(AgentRecord(key, skills=(skill,)), "home", key)

    listings = [offer("a-phone", "phone"), offer("b-mail", "email")]
    assert [listing.name for listing, _ in rank_skills("invite a person", listings, frozenset({"mesh"}))] == [
        "a-phone",
        "b-mail",
    ]
    first, _ = rank_skills("invite anna@example.org", listings, frozenset({"mesh"}))
    assert first[0].name == "b-mail"


def test_the_share_of_the_kinds_that_parameters_take() -> None:
    assert share_taken({"mail", "date"}, "email bodi") == 0.5
    assert share_taken({"mail"}, "") == 0.0
