"""Records of others are shown without hidden characters, and bounded."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.core.foreign_text import find_hidden
from retinue.core.record import (
    AgentRecord,
    Example,
    Listing,
    Prompt,
    PromptArgument,
    Resource,
    Skill,
    Trait,
)
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.foreign_records import (
    MAX_DESCRIPTION,
    MAX_NAME,
    MAX_NOTES,
    MAX_TITLE,
    clean_record,
)
from tests.support.memory_source import MemorySource

HIDDEN = [
    "\x1b",
    "\x00",
    "\x9b",
    "\u200b",
    "\u2028",
    "\u202e",
    "\u2060",
    "\u2066",
    "\U000e0041",
    "\U000e0100",
]
SAID = "Echoes the text."


def with_description(text: str) -> AgentRecord:
    """A record that has the text in every descriptive place."""
    schema = {"type": "object", "properties": {"title": {"type": "string", "description": text}}}
    return AgentRecord(
        "srv",
        title=text,
        description=text,
        topics=(text,),
        skills=(
            Skill(
                "echo",
                text,
                title=text,
                input_schema=schema,
                output_schema=schema,
                tags=(text,),
                similes=(text,),
                examples=(Example(text=text),),
            ),
        ),
        traits=(Trait("mood", text, value=text),),
        resources=(Resource("file:///a", text, title=text, description=text),),
        prompts=(Prompt("ask", (PromptArgument("x", text),), title=text, description=text),),
    )


@pytest.mark.parametrize("character", HIDDEN, ids=ascii)
def test_descriptive_texts_lose_hidden_characters_and_nothing_else(character: str) -> None:
    record, notes = clean_record(with_description(f"Echoes {character}the text."))
    assert record == with_description(SAID)
    assert all(f"U+{ord(character):04X}" in note for note in notes)
    assert not any(find_hidden(note) for note in notes)
    assert clean_record(record) == (record, ())


@pytest.mark.parametrize("text", ["tab\tline\r\n", "שלום \u200f", "日本語", "👩\u200d💻", "é", "❤\ufe0f"])
def test_text_in_any_language_stays(text: str) -> None:
    record = with_description(text)
    assert clean_record(record)[0] is record


REFUSED: dict[str, Any] = {
    "the name of a skill": {"skills": (Skill("e\u200bcho"), Skill("add"))},
    "the name of an argument": {
        "skills": (Skill("echo", input_schema={"properties": {"te\u202ext": {}}}), Skill("add"))
    },
    "a value of a schema": {"skills": (Skill("echo", input_schema={"enum": ["a\x1bb"]}), Skill("add"))},
    "a property that is called description": {
        "skills": (
            Skill("echo", output_schema={"properties": {"description": {"const": "\u2060"}}}),
            Skill("add"),
        )
    },
    "a long name": {"skills": (Skill("e" * (MAX_NAME + 1)), Skill("add"))},
    "the name of a trait": {"traits": (Trait("m\u200bood"),)},
    "the value of a trait": {"traits": (Trait("mood", value={"a": ["\U000e0041"]}),)},
    "a uri": {"resources": (Resource("file:///\u200b", "x"),)},
    "a prompt": {"prompts": (Prompt("a\u200b"),)},
    "an argument of a prompt": {"prompts": (Prompt("a", (PromptArgument("x\u200b"),)),)},
}


@pytest.mark.parametrize("parts", REFUSED.values(), ids=REFUSED.keys())
def test_what_only_its_owner_can_rename_is_left_out_with_a_note(parts: dict[str, Any]) -> None:
    record, notes = clean_record(AgentRecord("srv", **parts))
    assert [skill.id for skill in record.skills] == (["add"] if "skills" in parts else [])
    assert not record.traits + record.resources + record.prompts
    assert len(notes) == 1
    assert notes[0].endswith("it is left out")
    assert not find_hidden(notes[0])


def test_texts_and_notes_are_bounded() -> None:
    record, notes = clean_record(with_description("x" * 3_000_000))
    (skill,) = record.skills
    assert len(skill.description) == MAX_DESCRIPTION
    assert len(skill.title or "") == MAX_TITLE
    assert skill.description.endswith("…")
    assert 0 < len(notes) <= MAX_NOTES
    many = AgentRecord("srv", skills=tuple(Skill("e" * 5_000 + str(n)) for n in range(100)))
    record, notes = clean_record(many)
    assert record.skills == ()
    assert max(map(len, notes)) < 300


def test_a_schema_that_is_nested_too_deep_is_left_out() -> None:
    schema: dict[str, Any] = {}
    for _ in range(50_000):
        schema = {"items": schema}
    record, notes = clean_record(
        AgentRecord("srv", skills=(Skill("deep", input_schema=schema), Skill("add")))
    )
    assert [skill.id for skill in record.skills] == ["add"]
    assert notes == ("the schema of skill deep is nested too deep; it is left out",)


async def test_the_directory_shows_no_hidden_character_of_any_source_and_says_so() -> None:
    record = with_description("Echoes \U000e0041the text.")
    directory = Directory(MemoryListings(), [MemorySource("imports", [Listing(record, "imports", "srv")])])
    await directory.refresh()
    assert directory.get("srv").record == with_description(SAID)
    (problem,) = directory.problems()
    assert (problem.source, problem.key) == ("imports", "srv")
    assert "U+E0041" in problem.error.message
    directory.upsert(Listing(with_description(SAID), "imports", "srv"))
    assert directory.problems() == ()
    directory.upsert(Listing(record, "koi", "orn"))
    directory.remove(directory.get("srv@koi").id)
    assert directory.problems() == ()
