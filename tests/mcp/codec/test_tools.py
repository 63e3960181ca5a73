"""Skills as tools, arguments and results on their way through."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.record import Hints, Skill
from retinue.mcp.codec.tools import (
    SCREEN_CHARACTERS,
    SHORTENED,
    is_input_wrapped,
    is_output_wrapped,
    read_arguments,
    render_input_schema,
    render_output_schema,
    render_tool,
    shorten_description,
    wrap_result,
)
from tests.strategies import json_objects, json_values, skills

TEXT = {"type": "string"}
schemas = st.none() | json_objects | st.sampled_from([{"type": "object"}, {"type": "array"}, TEXT, {}])


@given(skills("a-skill"))
def test_a_tool_always_has_a_description_and_objects_at_the_root(skill: Skill) -> None:
    tool = render_tool(skill, "alias")
    assert tool["description"]
    assert tool["inputSchema"]["type"] == "object"
    assert tool.get("outputSchema", {"type": "object"})["type"] == "object"
    assert tool["_meta"]["retinue/skill"] == "a-skill"


@given(schemas, json_objects)
def test_arguments_pass_whole_or_inside_the_wrapping(schema: Any, arguments: dict[str, Any]) -> None:
    wrapped = is_input_wrapped(schema)
    sent = {"input": arguments} if wrapped else arguments
    assert read_arguments(schema, sent) == arguments


@given(schemas, json_values)
def test_a_promised_result_is_an_object_that_holds_the_value(schema: Any, value: Any) -> None:
    found = wrap_result(schema, value)
    if render_output_schema(schema) is not None and is_output_wrapped(schema):
        assert found == {"result": value}
    else:
        assert found == (value if isinstance(value, dict) else None)


def test_a_tool_says_what_its_skill_says() -> None:
    skill = Skill(
        "fs:read_file",
        "Reads a file.",
        input_schema={"type": "object", "properties": {"path": TEXT}},
        output_schema=TEXT,
        hints=Hints(read_only=True, idempotent=True),
    )
    assert render_tool(skill, "fs_read_file") == {
        "name": "fs_read_file",
        "title": "fs:read_file",
        "description": "Reads a file.",
        "inputSchema": {"type": "object", "properties": {"path": TEXT}},
        "annotations": {"readOnlyHint": True, "idempotentHint": True},
        "_meta": {"retinue/skill": "fs:read_file"},
    }


def test_a_tool_of_another_agent_names_it() -> None:
    tool = render_tool(Skill("sum", title="Sum"), "maths__sum", agent="maths")
    assert (tool["title"], tool["_meta"]) == ("Sum", {"retinue/skill": "sum", "retinue/agent": "maths"})
    assert render_tool(Skill("sum"), "maths__sum", agent="maths")["title"] == "maths: sum"


@pytest.mark.parametrize("schema", [{"type": ["object", "null"]}, {}, {"properties": {"a": TEXT}}])
def test_what_may_be_an_object_is_not_wrapped(schema: dict[str, Any]) -> None:
    assert not is_input_wrapped(schema)
    assert render_input_schema(schema)["type"] == "object"


def test_definitions_move_to_the_root_of_the_wrapping() -> None:
    schema = {"$defs": {"n": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/$defs/n"}}
    assert render_input_schema(schema) == {
        "type": "object",
        "properties": {"input": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
        "required": ["input"],
        "$defs": {"n": {"type": "integer"}},
    }


def test_any_text_is_no_promise_but_a_choice_of_texts_is() -> None:
    assert render_output_schema(TEXT) is None
    assert render_output_schema({"type": "string", "enum": ["a"]}) is not None
    assert wrap_result(TEXT, "x") is None


@given(st.text(min_size=SCREEN_CHARACTERS + 1, max_size=3 * SCREEN_CHARACTERS))
def test_a_description_longer_than_a_screen_is_shortened_in_the_list_of_a_hub_alone(text: str) -> None:
    skill = Skill("read", text)
    shown = render_tool(skill, "files__read", agent="files")["description"]
    assert len(shown) <= SCREEN_CHARACTERS
    assert shown.endswith(SHORTENED)
    assert text.startswith(shown.removesuffix(SHORTENED))
    assert render_tool(skill, "read")["description"] == text


def test_a_description_is_cut_after_a_line_a_sentence_or_a_word() -> None:
    for unit, end in (("A line of it\n", "A line of it"), ("One. ", "One."), ("word ", "word")):
        assert shorten_description(unit * 1_000).removesuffix(SHORTENED).endswith(end)
    assert shorten_description("x" * SCREEN_CHARACTERS) == "x" * SCREEN_CHARACTERS
