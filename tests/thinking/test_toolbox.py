"""Tools of a loop: patterns, names of functions, and schemas of functions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.thinking.completion import TOOL_NAME
from retinue.thinking.toolbox import (
    PinnedTool,
    Toolbox,
    digest_of,
    function_schema,
    is_permitted,
    matches,
    name_function,
)
from tests.strategies import json_objects

WORDS = st.text(min_size=1, max_size=80)


@pytest.mark.parametrize(
    ("pattern", "agent", "skill", "is_named"),
    [
        ("sum", "calc", "sum", True),
        ("sum", "calc", "sum2", False),
        ("calc/sum", "calc", "sum", True),
        ("calc/sum", "other", "sum", False),
        ("files/read_*", "files", "read_file", True),
        ("files/read_*", "files", "write_file", False),
        ("*/*delete*", "any", "undelete", True),
        ("billing.*", "any", "billing.total", True),
        ("[bc]alc/sum", "balc", "sum", True),
    ],
)
def test_a_pattern_names_an_id_a_skill_of_an_agent_or_a_glob(
    pattern: str, agent: str, skill: str, is_named: bool
) -> None:
    assert matches(pattern, agent, skill) is is_named


def test_a_skill_whose_id_looks_like_another_agents_skill_is_not_named_by_its_pattern() -> None:
    assert not matches("files/read_*", "foreign", "files/read_all")


def test_deny_comes_before_tools_and_a_model_is_no_tool() -> None:
    assert is_permitted("files", "read", ["files/*"], [])
    assert not is_permitted("files", "read", ["files/*"], ["*/read"])
    assert not is_permitted("files", "read", ["search"], ["read"])
    assert is_permitted("files", "read", ["search"], ["write"])
    assert not is_permitted("files", "read", ["calc/*"], [])
    assert not is_permitted("claude", "complete", ["search", "*/*"], [])


@given(st.lists(st.tuples(WORDS, WORDS), max_size=20, unique=True))
def test_names_of_functions_are_unique_and_valid_at_every_vendor(skills: list[tuple[str, str]]) -> None:
    taken: list[str] = []
    for agent, skill in skills:
        taken.append(name_function(agent, skill, taken))
    assert len(set(taken)) == len(taken)
    assert all(TOOL_NAME.fullmatch(name) for name in taken)


@given(WORDS, WORDS)
def test_a_name_of_a_function_is_the_same_in_each_run(agent: str, skill: str) -> None:
    assert name_function(agent, skill, []) == name_function(agent, skill, ["other"])


def test_the_name_of_a_function_is_that_of_the_tool_at_the_hubs_mcp_endpoint() -> None:
    assert name_function("files", "read_file", []) == "files__read_file"
    assert name_function("files", "fs:read", []) == "files__fs_read"
    assert name_function("files", "fs.read", ["files__fs_read"]) != "files__fs_read"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "array", "items": {}},
        {"anyOf": [{"type": "object"}]},
        {"$ref": "#/$defs/x"},
    ],
)
def test_an_input_that_is_no_object_becomes_an_argument(schema: dict[str, Any]) -> None:
    schema = {**schema, "$defs": {"x": {"type": "string"}}}
    function, is_wrapped = function_schema(schema)
    assert is_wrapped
    assert function["type"] == "object"
    assert function["required"] == ["input"]
    assert function["$defs"] == schema["$defs"]
    assert "$defs" not in function["properties"]["input"]


def test_the_schema_of_an_object_stays_and_has_properties() -> None:
    assert function_schema(None) == ({"type": "object", "properties": {}}, False)
    schema = {"type": "object", "properties": {"a": {}}, "required": ["a"]}
    assert function_schema(schema) == (schema, False)
    assert function_schema({"properties": {"a": {}}}) == ({"type": "object", "properties": {"a": {}}}, False)


@given(json_objects)
def test_equal_schemas_have_one_digest(schema: dict[str, Any]) -> None:
    assert digest_of(schema) == digest_of(dict(reversed(schema.items())))


def make_tool(name: str) -> PinnedTool:
    return PinnedTool(name, "", {"type": "object"}, "a", name, digest_of(None), {})


def test_tools_are_only_added_behind_the_others() -> None:
    box = Toolbox(searches=True)
    box.add([make_tool("b")])
    before = box.list_tools()
    box.add([make_tool("a")])
    assert box.list_tools()[: len(before)] == before
    assert [tool.name for tool in box.list_tools()] == ["find_skills", "b", "a"]
    assert box.suggest("find_skill") == ("find_skills",)
