"""What a search says is missing for a request."""

from __future__ import annotations

import pytest

from retinue.core.record import AgentRecord, Example, Listing, Skill
from retinue.mesh.search.actions import action_of_skill, read_action
from retinue.mesh.search.gaps import list_kinds
from retinue.mesh.search.ranking import SkillSearch
from retinue.mesh.search.text_index import MemoryTextIndex

MESH = frozenset({"mesh"})
SKILLS = (
    Skill("translate_text", "Translates text between languages"),
    Skill("summarize_notes", "Summarizes the notes of a meeting", examples=(Example("what was said?"),)),
    Skill("list_invoices", "Lists the invoices of a customer"),
    Skill("transcribe_calls", "Writes down a voice recording", visibility="private"),
)


def open_search(*offered: Skill) -> SkillSearch:
    listing = Listing(AgentRecord("office", skills=offered or SKILLS), "home", "agents/office")
    search = SkillSearch(MemoryTextIndex(), {listing.id: listing}.get)
    search.put([listing])
    return search


def find_gap(text: str, *offered: Skill) -> str | None:
    return open_search(*offered).find_skills(text, MESH).gap


@pytest.mark.parametrize(
    ("text", "gap"),
    [
        ("write down the meeting in call.mp3", "no skill here takes an audio file"),
        ("translate https://example.org/news", "no skill here takes a web address"),
        ("delete the old invoices", "for the action delete"),
        ("water the tomatoes on my balcony", "no skill here speaks of: water, tomatoes, balcony"),
    ],
)
def test_a_search_says_what_no_visible_skill_offers(text: str, gap: str) -> None:
    assert gap in (find_gap(text) or "")


@pytest.mark.parametrize("text", ["translate this text", "list the invoices of Miller", ""])
def test_nothing_is_missing_where_a_skill_fits(text: str) -> None:
    assert find_gap(text) is None


def test_a_kind_of_value_is_not_missing_where_a_skill_takes_it() -> None:
    files = Skill("transcribe", "Writes down an audio file", input_schema={"properties": {"path": {}}})
    assert find_gap("transcribe call.mp3", *SKILLS, files) is None
    assert find_gap("summarize call.mp3", *SKILLS, files) == "none of these skills takes an audio file"


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("read /tmp/a.pdf and b.XLSX", ["a PDF file", "a spreadsheet"]),
        ("mail ada@example.org about www.example.org", ["an e-mail address", "a web address"]),
        ("version 2.10 costs 3.50", []),
    ],
)
def test_kinds_of_values_are_read_from_a_request(text: str, kinds: list[str]) -> None:
    assert list_kinds(text) == kinds


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("get rid of it", "delete"),
        ("How many are there?", "compute"),
        ("the news, please", None),
        ("Look up Ada", "find"),
    ],
)
def test_the_verb_of_a_request_gives_its_action(text: str, action: str | None) -> None:
    assert read_action(text) == action


def test_the_verb_of_a_name_may_follow_a_prefix() -> None:
    names = ("createPlan", "jira_delete_issue", "get-weather", "calendar", "NewsTool")
    assert [action_of_skill(name) for name in names] == ["create", "delete", "get", None, None]


TESTERS = (
    Skill(
        "create_plan",
        "Creates implementation plans from requirements: tests for the Python module they name.",
        tags=("planning", "testing"),
        examples=(Example("write tests for the json module"),),
    ),
    Skill("generate_code", "Generates code from a plan", input_schema={"properties": {"agent": {}}}),
    Skill("review_code", "Reviews code by running it: tests of a module, or any other pytest file."),
)


@pytest.mark.parametrize(
    ("text", "is_likely"),
    [
        ("delete a file", False),
        ("stop the run", False),
        ("upload a module", False),
        ("rename a file", False),
        ("list agents", False),
        ("plan tests", True),
        ("write tests for a module", True),
        ("review this code", True),
    ],
)
def test_a_request_that_no_skill_of_a_small_mesh_serves_is_not_likely(text: str, is_likely: bool) -> None:
    assert open_search(*TESTERS).find_skills(text, MESH).fit.is_likely == is_likely


@pytest.mark.parametrize(
    ("text", "gap"),
    [
        ("what can you do", None),
        (
            "send mail to bob@x.org",
            "no skill here takes an e-mail address; no skill here speaks of: send, mail",
        ),
        ("fix the bug in node.js", "no skill here speaks of: fix, bug"),
    ],
)
def test_a_gap_names_neither_stop_words_nor_parts_of_values(text: str, gap: str | None) -> None:
    assert find_gap(text, *TESTERS) == gap
