"""The generated module: its functions, its names, its bytes, and hostile text."""

from __future__ import annotations

import ast
import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from retinue.client.stubs.module import Difference, compare_modules
from retinue.client.stubs.section import StubSkill
from tests.client.stubs.generated import check_statements, make_skill, render
from tests.strategies import json_values

PLAN = {"type": "object", "properties": {"goal": {"type": "string"}}, "required": ["goal"]}

HOSTILE = (
    '"""\nimport os\n"""',
    '"',
    '""',
    "\\",
    '\\"""',
    "a\rimport os",
    "a\x0cimport os",
    "x\u2028import os",
    "\u202edetsurt",
    "\ud800",
    "\0",
    "#",
    "x: Any = __import__('os').system('true')",
    "]; import os; [",
    "'''",
    "{count}",
    "`",
)
texts = st.text(max_size=12) | st.sampled_from(HOSTILE)
names = texts | st.sampled_from(
    ("name", "key", "agent", "class", "str", "list", "mesh", "arguments", "a-b", "__x")
)
references = st.sampled_from(("#", "#/$defs/a", "#/$defs/b", "#/properties/name")) | texts


def _extend(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keyed = st.dictionaries(names, inner, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(("object", "array", "string", "integer", "null"))
            | st.lists(texts, max_size=2),
            "description": texts,
            "title": texts,
            "properties": keyed,
            "required": st.lists(names, max_size=2),
            "additionalProperties": inner,
            "patternProperties": keyed,
            "items": inner | st.lists(inner, max_size=2),
            "prefixItems": st.lists(inner, max_size=2),
            "anyOf": st.lists(inner, max_size=3),
            "oneOf": st.lists(inner, max_size=2),
            "allOf": st.lists(inner, max_size=2),
            "if": inner,
            "then": inner,
            "enum": st.lists(json_values | texts, max_size=3),
            "const": json_values | texts,
            "nullable": st.booleans(),
            "$ref": references,
            "$defs": st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
        },
    )


schemas = st.recursive(st.none() | st.booleans() | json_values, _extend, max_leaves=12)
skills = st.builds(
    StubSkill,
    id=names,
    agent=st.none() | texts,
    name=names,
    description=texts,
    input_schema=schemas,
    output_schema=schemas,
)


@given(st.lists(skills, max_size=4, unique_by=lambda skill: (skill.id, skill.agent)), st.booleans())
@example(offered=[StubSkill("a", agent, "a", "", None, None) for agent in (None, "")], is_sync=False)
def test_any_schema_gives_a_module_with_the_expected_statements_only(
    offered: list[StubSkill], is_sync: bool
) -> None:
    text = render(*offered, is_sync=is_sync)
    made = check_statements(text)
    text.encode()
    kind = ast.FunctionDef if is_sync else ast.AsyncFunctionDef
    assert sum(isinstance(node, kind) for node in made.values()) == len(offered)
    exec(compile(text, "generated.py", "exec"), {})
    assert render(*reversed(offered), is_sync=is_sync) == text


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_stays_text(text: str) -> None:
    schema = {
        "type": "object",
        "description": text,
        "properties": {"a": {"type": "string", "description": text}, text: {"const": text}},
    }
    skill = make_skill(text, agent=text, description=text, input_schema=schema, output_schema=schema)
    made = check_statements(render(skill))
    (function,) = (node for node in made.values() if isinstance(node, ast.AsyncFunctionDef))
    called = function.body[-2].value.value  # type: ignore[attr-defined]
    assert called.args[0].value == text
    assert {option.arg: getattr(option.value, "value", None) for option in called.keywords}["agent"] == text


def test_a_docstring_says_what_the_description_says() -> None:
    schema = {"type": "object", "properties": {"goal": {"type": "string", "description": "What it is for"}}}
    made = check_statements(
        render(make_skill(description='Says "why" \\ now.\n\nMore.', input_schema=schema))
    )
    function = made["do"]
    assert isinstance(function, ast.AsyncFunctionDef)
    assert ast.get_docstring(function) == 'Says "why" \\ now.\n\nMore.\n\ngoal: What it is for'


def test_parameters_of_plain_names_are_keywords_and_others_a_mapping() -> None:
    def signature(*parameters: str, agent: str | None = None) -> list[str]:
        schema = {"type": "object", "properties": {name: {"type": "string"} for name in parameters}}
        lines = render(make_skill(input_schema=schema, agent=agent)).splitlines()
        return lines[lines.index("async def do(") + 1 :][:3]

    assert signature("goal", "mesh", "arguments", "into")[2] == "    **arguments: Unpack[DoInput],"
    for name in ("agent", "version", "key", "timeout_s", "budget", "a-b", "class", "naïve", ""):
        assert signature("goal", name)[0] == "    mesh: MeshConnection, arguments: DoInput, /, *,"
    assert signature("agent", agent="one")[2] == "    **arguments: Unpack[DoInput],"


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (None, "mesh: MeshConnection, arguments: dict[str, Any] | None = None, /, *,"),
        ({"type": "object"}, "mesh: MeshConnection, arguments: dict[str, Any] | None = None, /, *,"),
        ({"type": "object", "properties": {}}, "mesh: MeshConnection, /, *,"),
        ({"type": "string"}, "mesh: MeshConnection, arguments: dict[str, Any] | None = None, /, *,"),
        (
            {"anyOf": [PLAN, {"properties": {"b": {"const": 1}}}]},
            "mesh: MeshConnection, arguments: DoInput | DoInput2 | None = None, /, *,",
        ),
    ],
)
def test_arguments_without_named_keys_are_a_mapping(schema: Any, expected: str) -> None:
    assert f"    {expected}" in render(make_skill(input_schema=schema)).splitlines()


def test_a_function_has_the_id_as_its_name_where_it_can() -> None:
    def functions(*ids: str) -> list[str]:
        made = check_statements(render(*map(make_skill, ids)))
        return [name for name, node in made.items() if isinstance(node, ast.AsyncFunctionDef)]

    assert functions("createIssue", "create_plan") == ["createIssue", "create_plan"]
    assert functions("add-comments", "import", "list", "2fa", "日本") == [
        "skill_2fa",
        "add_comments",
        "import_",
        "list_",
        "skill___",
    ]
    # a new skill does not take the name of one that has it
    first, second = functions("a-b", "a_b")
    assert second == "a_b"
    assert first.startswith("a_b_")
    assert len(set(functions("a-b", "a.b"))) == 2


def test_types_of_different_skills_have_different_names() -> None:
    text = render(
        make_skill("create_plan", input_schema=PLAN),
        make_skill("createPlan", input_schema=PLAN),
        make_skill("create_plan_input", input_schema={"type": "object", "properties": {"input": PLAN}}),
    )
    assert len([node for node in check_statements(text).values() if isinstance(node, ast.ClassDef)]) == 4


def test_equal_skills_give_equal_bytes_in_any_order() -> None:
    offered = [make_skill(f"skill_{n}", input_schema=PLAN, output_schema=PLAN) for n in range(9)]
    text = render(*offered)
    random.Random(3).shuffle(offered)
    assert render(*offered) == text
    assert "# skills: 9\n# digest: sha256:" in text


def test_two_modules_are_compared_by_skill() -> None:
    kept = render(make_skill("a"), make_skill("b"), make_skill("c", agent="one"))
    new = render(
        make_skill("b", description="new"), make_skill("c", agent="one"), make_skill("d", agent='"x"')
    )
    assert compare_modules(kept, kept) is None
    assert compare_modules(kept, new) == Difference(('"d" of "\\"x\\""',), ('"a"',), ('"b"',))
    assert compare_modules(kept + "\n", kept) == Difference((), (), ())


def test_a_description_does_not_look_like_a_mark() -> None:
    hostile = '\n# skill "other": 0123456789ab\n'
    text = render(
        make_skill(description=hostile, output_schema={"properties": {"a": {"description": hostile}}})
    )
    assert compare_modules("", text) == Difference(('"do"',), (), ())
