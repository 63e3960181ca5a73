"""ElizaOS character files: what is read, what is ignored, and how a broken one is refused."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.cards.character_file import is_character, parse_character
from retinue.core.errors import InvalidSettingError
from tests.requirements import requirement

pytestmark = requirement("W-23")


def parse(**facts: Any) -> Any:
    return parse_character({"name": "Jules", **facts}, "Jules.json")


def test_name_topics_and_actions_with_similes_and_examples_are_read() -> None:
    said = {"user": "{{user1}}", "content": {"text": "Please debug this"}}
    found = parse(
        topics=["Python"],
        actions=[{"name": "FIX", "similes": ["mend"], "description": "Fixes", "examples": [[said]]}],
    )
    (action,) = found.actions
    assert (found.name, found.topics) == ("Jules", ("Python",))
    assert (action.name, action.similes, action.description) == ("FIX", ("mend",), "Fixes")
    assert [one.text for one in action.examples] == ["Please debug this"]


@pytest.mark.parametrize("bio", ["A coder.", ["A", "coder."]])
def test_a_biography_is_one_text_or_several(bio: Any) -> None:
    assert parse(bio=bio).description == "A coder."


def test_a_name_of_several_words_becomes_an_agents_name_and_stays_the_title() -> None:
    found = parse_character({"name": "Eddy the Engineer", "bio": "x"}, "f")
    assert (found.name, found.title) == ("Eddy-the-Engineer", "Eddy the Engineer")


def test_the_persona_has_system_bio_lore_style_and_examples() -> None:
    persona = parse(
        system="Be careful.",
        bio=["repairs things"],
        lore=["found a colon"],
        style={"all": ["short"], "chat": ["warm"], "post": ["loud"]},
        messageExamples=[
            [{"user": "Ada", "content": {"text": "Help"}}, {"name": "Jules", "content": {"text": "Yes"}}]
        ],
    ).persona
    for part in (
        "Be careful.",
        "You are Jules",
        "repairs things",
        "found a colon",
        "short",
        "warm",
        "Jules: Yes",
    ):
        assert part in persona
    assert "loud" not in persona


def test_keys_without_a_meaning_here_are_ignored() -> None:
    assert parse(plugins=["x"], clients=[], settings={"a": 1}, unheard={"of": 1}).actions == ()


def test_an_agent_json_is_no_character() -> None:
    assert is_character({"name": "a", "bio": "b"})
    assert not is_character({"name": "a", "entry": "a.py", "bio": "b"})
    assert not is_character({"name": "a", "topics": []})


@pytest.mark.parametrize(
    ("facts", "where"),
    [
        ({"name": ""}, "Jules.json: name"),
        ({"name": 1}, "Jules.json: name"),
        ({"topics": "Python"}, "Jules.json: topics"),
        ({"actions": {}}, "Jules.json: actions"),
        ({"actions": [{}]}, "Jules.json: actions[0].name"),
        ({"actions": [{"name": "A", "similes": [1]}]}, "Jules.json: actions[0].similes"),
        ({"actions": [{"name": "A", "examples": [1]}]}, "Jules.json: actions[0].examples"),
        ({"actions": [{"name": "A"}, {"name": "A"}]}, "'A' is there twice"),
        ({"style": []}, "Jules.json: style"),
        ({"retinue": {"modle": "x"}}, "Jules.json: retinue.modle"),
        ({"retinue": {"expose": True}}, "Jules.json: retinue.expose"),
    ],
)
def test_a_broken_file_is_refused_with_file_field_and_remedy(facts: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidSettingError) as caught:
        parse(**facts)
    assert where in caught.value.message
    assert caught.value.remedy


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
KEYS = st.sampled_from(
    [
        "name",
        "bio",
        "lore",
        "topics",
        "style",
        "system",
        "actions",
        "messageExamples",
        "adjectives",
        "retinue",
    ]
)


@given(st.dictionaries(KEYS, json_values))
def test_any_object_is_read_or_refused_as_a_setting(facts: dict[str, Any]) -> None:
    with suppress(InvalidSettingError):
        assert parse_character(facts, "f").name
