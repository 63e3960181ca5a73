"""Schemas: what is refused at registration, and in which words a bad value is answered."""

from __future__ import annotations

import time
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import SchemaRefusedError
from retinue.mesh.schema.checks import (
    CACHE_SIZE,
    MAX_PROBLEMS,
    MAX_SCHEMA_BYTES,
    check_schema,
    compile_schema,
)
from tests.requirements import requirement

WHERE = "create_plan.input_schema"

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)
KEYWORDS = st.sampled_from(
    [
        "type",
        "properties",
        "required",
        "items",
        "anyOf",
        "oneOf",
        "allOf",
        "$ref",
        "$defs",
        "enum",
        "pattern",
        "not",
    ]
)
SCHEMA_LIKE = st.recursive(
    st.sampled_from(["string", "object", "#", "#/$defs/a", "x", 1, True, None]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=4),
    max_leaves=15,
)


def messages(schema: Any, value: Any) -> list[str]:
    return [problem.message for problem in compile_schema(schema, WHERE).problems(value)]


def fields(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


@requirement("P-23")
def test_missing_field_is_named_in_the_words_of_the_seed() -> None:
    (problem,) = compile_schema(fields("requirements"), WHERE).problems({})
    assert problem.message == "missing required field 'requirements'"
    assert problem.path == "requirements"


@requirement("P-23")
def test_missing_fields_come_in_the_order_of_required_and_before_anything_else() -> None:
    schema = fields("zeta", "alpha", beta={"type": "string"})
    assert messages(schema, {"beta": 1}) == [
        "missing required field 'zeta'",
        "missing required field 'alpha'",
        "field 'beta' must be string; it is an integer",
    ]


@requirement("P-23")
def test_nested_fields_are_named_by_their_dotted_path_after_the_outer_ones() -> None:
    schema = fields("name", plan=fields("steps", "goal"), list={"type": "array", "items": fields("id")})
    value = {"plan": {}, "list": [{"id": 1}, {}] + [{"id": 1}] * 8 + [{}]}
    assert messages(schema, value) == [
        "missing required field 'name'",
        "missing required field 'list.1.id'",
        "missing required field 'list.10.id'",
        "missing required field 'plan.steps'",
        "missing required field 'plan.goal'",
    ]


@requirement("P-12")
@requirement("P-13")
def test_a_value_that_fits_has_no_problems() -> None:
    check = compile_schema(fields("a", a={"type": "string"}), WHERE)
    assert check.is_valid({"a": "x"})
    assert check.problems({"a": "x"}) == []


HERE = "the value must "


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        ({"type": "string"}, 7, HERE + "be string; it is an integer"),
        ({"type": ["null", "integer"]}, "12", HERE + "be integer or null; it is a string of 2 characters"),
        ({"enum": ["red", "blue"]}, None, HERE + 'be one of "red", "blue"; it is null'),
        ({"const": "v1"}, True, HERE + 'be "v1"; it is a boolean'),
        ({"minimum": 5}, 4, HERE + "be at least 5; it is an integer"),
        ({"exclusiveMaximum": 1.5}, 2.5, HERE + "be less than 1.5; it is a number"),
        ({"multipleOf": 3}, 4, HERE + "be a multiple of 3; it is an integer"),
        ({"minLength": 2}, "a", HERE + "have at least 2 characters; it is a string of 1 character"),
        ({"pattern": "^a+$"}, "bc", HERE + "match the pattern ^a+$; it is a string of 2 characters"),
        ({"maxItems": 1}, [1, 2], HERE + "have at most 1 item; it is an array of 2 items"),
        ({"uniqueItems": True}, [1, 1], HERE + "hold no item twice; it is an array of 2 items"),
        ({"minProperties": 1}, {}, HERE + "have at least 1 field; it is an object of 0 fields"),
        ({"not": {"type": "null"}}, None, HERE + "not have the form that the schema excludes; it is null"),
        (
            {"contains": {"type": "null"}},
            [1],
            HERE + "hold an item of the form that the schema asks for; it is an array of 1 item",
        ),
        (
            {"oneOf": [{"minimum": 1}, {"maximum": 9}]},
            5,
            HERE + "fit exactly one of the 2 allowed forms; it is an integer",
        ),
        (
            {"propertyNames": {"maxLength": 1}},
            {"ab": 1},
            HERE + "have only field names that the schema allows; it is an object of 1 field",
        ),
        ({"properties": {"a": False}}, {"a": 1}, "unknown field 'a'"),
        ({"additionalProperties": False}, {"a": 1}, "unknown field 'a'"),
        ({"properties": {}, "additionalProperties": False}, {"a": 1}, "unknown field 'a'"),
        ({"unevaluatedProperties": False}, {"a": 1}, "unknown field 'a'"),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "missing required field 'b'"),
        (False, 1, "no value is allowed"),
    ],
)
def test_each_keyword_has_its_own_stable_text(schema: Any, value: Any, message: str) -> None:
    assert messages(schema, value) == [message]


FORMATS = {
    "date": "be a date such as 2026-01-31",
    "date-time": "be a date and time such as 2026-01-31T12:30:00Z",
    "time": "be a time such as 12:30:00",
    "duration": "be a duration such as PT1H30M",
    "uuid": "be a UUID",
    "decimal": "be a number such as 9.99",
}


@pytest.mark.parametrize(("name", "wanted"), FORMATS.items())
def test_a_text_of_another_format_is_named_beside_other_problems_and_refused_by_the_agent_alone(
    name: str, wanted: str
) -> None:
    forms = [{"type": "string", "format": name}, {"type": "null"}]
    schema = fields(n={"type": "integer"}, f={"anyOf": forms})
    text = f"field 'f' must {wanted}; it is a string of 3 characters"
    number = "field 'n' must be integer; it is a string of 1 character"
    assert messages(schema, {"f": "xyz", "n": "1"}) == [text, number]
    assert messages(schema, {"f": "xyz", "n": 1}) == []
    assert messages(schema, {"f": None, "n": "1"}) == [number]


def test_spellings_that_an_agent_takes_and_formats_without_a_check_are_no_problem() -> None:
    right = {"at": "2026-01-31 12:30", "mail": "nobody", "price": "1e5"}
    formats = {"at": "date-time", "mail": "email", "price": "decimal"}
    schema = fields(n={"type": "integer"}, **{k: {"type": "string", "format": v} for k, v in formats.items()})
    number = "field 'n' must be integer; it is a string of 1 character"
    assert messages(schema, {**right, "n": "1"}) == [number]


def test_an_older_draft_that_asserts_formats_still_does() -> None:
    older = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "string", "format": "email"}
    email = HERE + "have the format email; it is a string of 6 characters"
    assert messages(older, "nobody") == [email]


def test_every_unexpected_field_is_a_problem_of_its_own() -> None:
    schema = {"properties": {"a": {}}, "additionalProperties": False}
    problems = compile_schema(schema, WHERE).problems({"z": 1, "a": 1, "b": 1})
    assert [p.path for p in problems] == ["b", "z"]


def test_an_optional_value_of_another_form_is_told_the_form_and_not_the_number_of_forms() -> None:
    schema = fields(
        status={"anyOf": [{"enum": ["done", "failed"], "type": "string"}, {"type": "null"}]},
        run={"anyOf": [{"type": "string"}, {"type": "null"}]},
    )
    assert messages(schema, {"status": "banana", "run": 5}) == [
        "field 'run' must be string; it is an integer",
        'field \'status\' must be one of "done", "failed"; it is a string of 6 characters',
    ]
    assert not messages(schema, {"status": None, "run": None})


def test_inside_an_optional_object_the_missing_field_itself_is_named() -> None:
    schema = {"properties": {"plan": {"anyOf": [{"$ref": "#/$defs/Plan"}, {"type": "null"}]}}}
    schema["$defs"] = {"Plan": fields("steps")}
    assert messages(schema, {"plan": {}}) == ["missing required field 'plan.steps'"]


def test_of_tagged_forms_the_one_whose_tag_was_sent_is_explained() -> None:
    add = {"type": "object", "properties": {"op": {"const": "add"}}, "required": ["op", "x"]}
    end = {"type": "object", "properties": {"op": {"const": "end"}}, "required": ["op"]}
    assert messages({"oneOf": [add, end]}, {"op": "add"}) == ["missing required field 'x'"]
    assert messages({"oneOf": [add, end]}, {"op": "other"}) == [
        "the value must fit exactly one of the 2 allowed forms; it is an object of 1 field"
    ]


def test_long_words_of_a_schema_are_cut() -> None:
    (message,) = messages({"enum": [f"colour-{i}" for i in range(500)]}, 1)
    assert len(message) < 320
    assert "… 500 in all" in message


def test_a_value_with_endless_mistakes_gets_a_bounded_answer() -> None:
    problems = compile_schema({"items": {"type": "string"}}, WHERE).problems(list(range(50_000)))
    assert len(problems) == MAX_PROBLEMS


@given(value=JSON)
def test_no_message_repeats_a_value(value: Any) -> None:
    secret = "s3cret-token-of-somebody"
    schema = {
        "properties": {
            "v": {"type": "integer"},
            "w": {"enum": [1]},
            "x": {"pattern": "^a$"},
            "y": {"const": 2},
        },
        "anyOf": [{"required": ["q"]}, {"type": "array"}],
    }
    found = messages(schema, {"v": secret, "w": [secret], "x": secret, "y": {"k": secret}, "z": value})
    assert found
    assert not any(secret in message for message in found)


def test_values_that_are_no_json_are_problems_and_no_crash() -> None:
    check = compile_schema({"type": "object"}, WHERE)
    assert not check.is_valid({1: 2})
    assert [p.message for p in check.problems(object())] == ["the value is not JSON"]


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"$ref": "http://example.org/schema.json"}, "points outside the schema"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "points outside the schema"),
        ({"$ref": "other.json#/x"}, "points outside the schema"),
        ({"$ref": "#/$defs/absent"}, "leads nowhere"),
        ({"$ref": "#nobody"}, "leads nowhere"),
        ({"$ref": "#"}, "leads back to itself"),
        ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"not": {"$ref": "#"}}}}, "leads back to itself"),
        ({"properties": {"a": {"$id": "http://x/", "$ref": "#/y"}}, "y": {}}, "an id of its own"),
        ({"items": {"$anchor": "a"}, "not": {"$anchor": "a"}}, "the anchor 'a' twice"),
        ({"items": {"$id": "#a"}, "not": {"$anchor": "a"}}, "the anchor 'a' twice"),
        (
            {"$schema": "http://json-schema.org/draft-04/schema#", "not": {"id": "http://x/", "$ref": "#/y"}},
            "an id of its own",
        ),
        ({"$ref": ""}, "points outside the schema"),
        ({"$id": "::"}, "Invalid URI"),
        ({"type": "objekt"}, "at type"),
        ({"properties": []}, "at properties"),
        ({"type": "string", "pattern": "(?=x)y"}, "no regular expression, or uses look-around"),
        ({"type": "string", "pattern": "("}, "no regular expression"),
        ({"description": "x" * MAX_SCHEMA_BYTES}, "larger than 65,536 bytes"),
        ({"default": object()}, "it is not JSON"),
        ([], "a JSON Schema is an object"),
        ({"anyOf": [{"type": "string"}] * 1_001}, "over 1,000 $refs and branches"),
    ],
)  # fmt: skip
def test_an_unusable_schema_is_refused_with_its_place(schema: Any, problem: str) -> None:
    with pytest.raises(SchemaRefusedError) as refused:
        check_schema(schema, WHERE)
    assert problem in refused.value.message
    assert WHERE in refused.value.message


def test_a_schema_nested_too_deeply_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(70):
        schema = {"items": schema}
    with pytest.raises(SchemaRefusedError, match="nested deeper than 64"):
        check_schema(schema, WHERE)


def doubling(levels: int, *, through_fields: bool) -> dict[str, Any]:
    """A chain of definitions, each of which tries the next one twice."""
    defs: dict[str, Any] = {f"d{levels}": {"type": "string"}}
    for level in range(levels):
        twice: dict[str, Any] = {"anyOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2}
        defs[f"d{level}"] = {"properties": {"a": twice}} if through_fields else twice
    return {"$ref": "#/$defs/d0", "$defs": defs}


@pytest.mark.parametrize("through_fields", [False, True])
def test_branches_that_explode_are_refused_quickly(through_fields: bool) -> None:
    check_schema(doubling(5, through_fields=through_fields), WHERE)
    started = time.process_time()
    with pytest.raises(SchemaRefusedError, match=r"over 4,096 times"):
        check_schema(doubling(60, through_fields=through_fields), WHERE)
    assert time.process_time() - started < 1.0


def test_large_harmless_schemas_are_accepted() -> None:
    def optional(model: int) -> dict[str, Any]:
        return {"anyOf": [{"$ref": f"#/$defs/Model{model}"}, {"type": "null"}]}

    defs = {
        f"Model{i}": fields("name", **{f"f{k}": optional(i + k) for k in (1, 2, 3) if i + k < 60})
        for i in range(60)
    }
    check_schema({"$ref": "#/$defs/Model0", "$defs": defs}, WHERE)


def test_a_tree_may_be_as_deep_as_it_likes() -> None:
    tree = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}
    value: dict[str, Any] = {"children": 1}
    for _ in range(50):
        value = {"children": [value]}
    (message,) = messages(tree, value)
    assert message.endswith("must be array; it is an integer")


def test_a_recursive_union_is_usable_up_to_a_safe_depth() -> None:
    def form(op: str) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"op": {"const": op}, "arg": {"$ref": "#"}},
            "required": ["op"],
        }

    union = {"anyOf": [form("a"), form("b"), {"type": "number"}]}
    check = compile_schema(union, WHERE)
    shallow: Any = 1
    for _ in range(6):
        shallow = {"op": "b", "arg": shallow}
    assert check.problems(shallow) == []
    deep = shallow
    for _ in range(60):
        deep = {"op": "b", "arg": deep}
    assert not check.is_valid(deep)
    assert "nested deeper than" in check.problems(deep)[0].message


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#name", "$defs": {"x": {"$anchor": "name", "type": "string"}}},
        {"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"type": "string"}}},
        {"$id": "https://example.org/s", "$ref": "#/$defs/x", "$defs": {"x": {"type": "string"}}},
        {"$ref": "#/prefixItems/0", "prefixItems": [{"type": "string"}]},
    ],
)
def test_a_ref_within_the_schema_is_followed(schema: Any) -> None:
    assert messages(schema, "x") == []
    assert messages(schema, 1) == ["the value must be string; it is an integer"]


def test_example_values_may_look_like_keywords() -> None:
    check_schema(
        {"examples": [{"$id": "1", "$ref": "http://x/"}], "properties": {"$ref": {}, "$id": {}}}, WHERE
    )


def test_ids_that_only_name_a_part_are_accepted() -> None:
    draft = "http://json-schema.org/draft-07/schema#"
    schema = {"$schema": draft, "properties": {"a": {"$id": "#/properties/a", "id": "a", "type": "string"}}}
    assert messages(schema, {"a": 1}) == ["field 'a' must be string; it is an integer"]
    named = {"$schema": draft, "definitions": {"x": {"$id": "#name", "type": "string"}}, "$ref": "#name"}
    assert messages(named, 1) == ["the value must be string; it is an integer"]


def test_the_cache_is_bounded() -> None:
    first = fields("first of many")
    check = compile_schema(first, WHERE)
    for number in range(CACHE_SIZE):
        compile_schema({"const": number}, WHERE)
    assert compile_schema(first, WHERE) is not check


def test_older_drafts_are_read_by_their_own_rules() -> None:
    tuple_of_two = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}, {}]}
    assert messages(tuple_of_two, [1, 2]) == ["field '0' must be string; it is an integer"]


def test_equal_schemas_are_compiled_once_and_known_ones_found_by_identity() -> None:
    schema = fields("once", once={"type": "string"})
    check = compile_schema(schema, WHERE)
    assert compile_schema(schema, "elsewhere") is check
    assert compile_schema(dict(schema), "elsewhere") is check
    assert compile_schema(MappingProxyType(schema), "elsewhere") is check


@given(schema=SCHEMA_LIKE, value=JSON)
def test_no_schema_and_no_value_crash_the_check(schema: Any, value: Any) -> None:
    try:
        check = compile_schema(schema, WHERE)
    except SchemaRefusedError:
        return
    problems = check.problems(value)
    assert bool(problems) != check.is_valid(value)
    assert all(p.message for p in problems)


CLOSED = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tone": {"type": "string"},
        "to": {"$ref": "#/$defs/Place"},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {
        "Place": {"type": "object", "properties": {"city": {}, "zip": {}}, "additionalProperties": False}
    },
}


@requirement("P-23")
@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"name": "a", "tune": "b"}, [("unknown field 'tune'", "did you mean 'tone'?")]),
        ({"name": "a", "zzzzzz": 1}, [("unknown field 'zzzzzz'", "there are: name, tone, to")]),
        ({"name": "a", "to": {"citty": 1}}, [("unknown field 'to.citty'", "did you mean 'city'?")]),
        (
            {"nam": "a", "tone": 1},
            [
                ("missing required field 'name'", ""),
                ("unknown field 'nam'", "did you mean 'name'?"),
                ("field 'tone' must be string; it is an integer", ""),
            ],
        ),
    ],
    ids=["near", "not near", "inside", "several"],
)
def test_an_unknown_field_is_named_with_the_nearest_known_one(
    value: Any, told: list[tuple[str, str]]
) -> None:
    problems = compile_schema(CLOSED, "test").problems(value, CLOSED)
    assert [(problem.message, problem.hint) for problem in problems] == told


def test_a_name_that_is_given_already_is_not_suggested() -> None:
    schema = {"type": "object", "properties": {"text": {}, "texts": {}}, "additionalProperties": False}
    (problem,) = compile_schema(schema, "test").problems({"text": 1, "textt": 2}, schema)
    assert problem.hint == "did you mean 'texts'?"


def test_an_object_without_fields_says_so() -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    (problem,) = compile_schema(schema, "test").problems({"a": 1}, schema)
    assert (problem.message, problem.hint) == ("unknown field 'a'", "there are no fields")
