"""Typed functions read once: their schemas, their arguments, their results."""

from __future__ import annotations

import socket
import sys
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import orjson
import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from retinue.authoring.context import Context
from retinue.authoring.results import encode_result
from retinue.authoring.signatures import read_signature
from retinue.core.call import Part
from retinue.core.errors import InvalidParametersError, InvalidSettingError, OutputInvalidError
from tests.requirements import requirement


class Plan(BaseModel):
    """How to go about it."""

    plan: str
    steps: list[str] = []


@dataclass
class Box:
    width: int
    label: str = "box"


class Colour(Enum):
    RED = "red"


class Tree(BaseModel):
    children: list[Tree] = []


def schema_of(function: Callable[..., Any]) -> Any:
    return read_signature(function, "skill").input_schema


def properties_of(function: Callable[..., Any]) -> Any:
    return schema_of(function)["properties"]


def test_types_make_the_schemas_that_seed_001_has_for_create_plan_with_the_input_closed() -> None:
    class SeedPlan(BaseModel):
        plan: str
        steps: list[Any]

    async def create_plan(requirements: str) -> SeedPlan: ...  # type: ignore[empty-body]

    create_plan.__annotations__["return"] = SeedPlan
    signature = read_signature(create_plan, "create_plan")
    assert orjson.dumps(signature.input_schema) == orjson.dumps(
        {
            "type": "object",
            "properties": {"requirements": {"type": "string"}},
            "required": ["requirements"],
            "additionalProperties": False,
        }
    )
    assert signature.output_schema == {
        "type": "object",
        "properties": {"plan": {"type": "string"}, "steps": {"type": "array", "items": {}}},
        "required": ["plan", "steps"],
    }


def test_a_default_makes_a_parameter_optional_and_stands_in_the_schema() -> None:
    def skill(a: int, b: str = "x", c: int | None = None) -> None: ...

    assert schema_of(skill) == {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": "string", "default": "x"},
            "c": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        },
        "required": ["a"],
        "additionalProperties": False,
    }


def test_descriptions_and_bounds_come_from_annotated() -> None:
    def skill(n: Annotated[int, Field(description="How many", ge=1, le=9)] = 3) -> None: ...

    assert properties_of(skill)["n"] == {
        "type": "integer",
        "description": "How many",
        "minimum": 1,
        "maximum": 9,
        "default": 3,
    }


def test_a_literal_is_an_enum() -> None:
    def skill(mode: Literal["all", "any"], colour: Colour = Colour.RED) -> None: ...

    schema = schema_of(skill)
    assert schema["properties"]["mode"]["enum"] == ["all", "any"]
    assert schema["properties"]["colour"]["default"] == "red"
    assert read_signature(skill, "s").bind({"mode": "all", "colour": "red"}, None)["colour"] is Colour.RED


def test_models_dataclasses_paths_and_dates_arrive_as_what_they_are() -> None:
    def skill(plan: Plan, box: Box, at: datetime, where: Path) -> None: ...

    bound = read_signature(skill, "s").bind(
        {
            "plan": {"plan": "p"},
            "box": {"width": 2},
            "at": "2026-01-02T03:04:05Z",
            "where": "a/b",
        },
        None,
    )
    assert bound["plan"] == Plan(plan="p")
    assert bound["box"] == Box(2)
    assert bound["at"].year == 2026
    assert bound["where"] == Path("a/b")


def test_names_that_a_model_could_not_have_keep_their_name_on_the_wire() -> None:
    def skill(model_x: int, schema: int, _x: int, self: int, json: int, copy: int, class_: int) -> None: ...

    names = ["model_x", "schema", "_x", "self", "json", "copy", "class_"]
    signature = read_signature(skill, "s")
    assert list(signature.input_schema["properties"]) == names
    assert signature.bind(dict.fromkeys(names, 1), None) == dict.fromkeys(names, 1)


def test_the_context_is_handed_in_and_never_part_of_the_schema() -> None:
    def typed(a: int, where: Context) -> None: ...

    def optional(a: int, where: Context | None = None) -> None: ...

    def untyped(a, ctx): ...  # type: ignore[no-untyped-def]

    for function, name in ((typed, "where"), (optional, "where"), (untyped, "ctx")):
        signature = read_signature(function, "s")
        assert list(signature.input_schema["properties"]) == ["a"]
        assert signature.context_name == name
        assert signature.bind({"a": 1, name: "forged"}, None) == {"a": 1, name: None}


def test_a_ctx_of_another_type_is_an_ordinary_parameter() -> None:
    def skill(ctx: str) -> None: ...

    assert properties_of(skill) == {"ctx": {"type": "string"}}


def test_keyword_arguments_take_what_has_no_name_of_its_own() -> None:
    def skill(a: int, **more: Any) -> None: ...

    signature = read_signature(skill, "s")
    assert signature.input_schema["additionalProperties"] is True
    assert signature.bind({"a": 1, "p_a": 2, "b": [3]}, None) == {"a": 1, "p_a": 2, "b": [3]}


def test_without_them_the_schema_is_closed_but_not_the_binding() -> None:
    """An author's own schema, which replaces this one, may admit what the function does not take."""

    def skill(a: int) -> None: ...

    signature = read_signature(skill, "s")
    assert signature.input_schema["additionalProperties"] is False
    assert signature.bind({"a": 1, "b": 2}, None) == {"a": 1}


def test_a_function_without_types_takes_and_gives_anything() -> None:
    def skill(a, b=2): ...  # type: ignore[no-untyped-def]

    signature = read_signature(skill, "s")
    assert signature.input_schema == {
        "type": "object",
        "properties": {"a": {}, "b": {"default": 2}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert signature.output_schema is None


def test_a_function_without_parameters_takes_an_empty_object() -> None:
    def skill() -> str: ...  # type: ignore[empty-body]

    assert schema_of(skill) == {"type": "object", "properties": {}, "additionalProperties": False}
    assert read_signature(skill, "s").output_schema == {"type": "string"}


def test_asynchronous_functions_are_told_from_synchronous_ones() -> None:
    async def waits() -> None: ...

    def runs() -> None: ...

    assert read_signature(waits, "s").is_async
    assert not read_signature(runs, "s").is_async


def test_a_recursive_model_keeps_its_definition() -> None:
    def skill(tree: Tree) -> Tree: ...  # type: ignore[empty-body]

    signature = read_signature(skill, "s")
    assert "Tree" in signature.input_schema["$defs"]
    assert signature.bind({"tree": {"children": [{}]}}, None)["tree"].children == [Tree()]


def open_socket(a: socket.socket) -> None: ...


def call_back(a: Callable[[int], int]) -> None: ...


def gives_a_socket() -> socket.socket: ...  # type: ignore[empty-body]


def without_a_name(a: int, /) -> None: ...


def many(*a: int) -> None: ...


def of_unknown_type(a: NoSuchType) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def of_missing_member(a: socket.NoSuchMember) -> None: ...  # type: ignore[name-defined]


async def streams() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    "function",
    [
        open_socket,
        call_back,
        gives_a_socket,
        without_a_name,
        many,
        of_unknown_type,
        of_missing_member,
        streams,
    ],
)
def test_what_json_cannot_carry_is_refused_when_the_skill_is_declared(function: Callable[..., Any]) -> None:
    with pytest.raises(InvalidSettingError) as caught:
        read_signature(function, "my_skill")
    assert "my_skill" in caught.value.message
    assert "\n" not in caught.value.message
    assert "pydantic" not in caught.value.message
    assert "arbitrary_types_allowed" not in caught.value.message + caught.value.remedy
    assert caught.value.remedy


class Weather:
    def forecast(self, city: str) -> str:
        return f"{city}: sun"

    @classmethod
    def of_class(cls, city: str) -> str:
        return city


class Coordinates(typing.TypedDict):
    x: int


def takes_typed_dict(at: Coordinates) -> None: ...


def has_two_contexts(ctx: Context, other: Context) -> None: ...


_MISSING: Any = object()


@cache
def with_sentinel(x: int = _MISSING) -> int:
    return x


def test_a_default_that_is_no_json_is_left_out_of_the_schema_without_a_warning(
    recwarn: pytest.WarningsRecorder,
) -> None:
    signature = read_signature(with_sentinel, "my_skill")
    assert signature.input_schema["properties"] == {"x": {"type": "integer"}}
    assert list(recwarn) == []


def lists_a_generator() -> AsyncIterator[int]:
    return streams()


def counts() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "problem", "remedy"),
    [
        (streams, "it is a generator", "return a list, and report steps with ctx.progress"),
        (counts, "it is a generator", "return a list"),
        (lists_a_generator, "it is a generator", "return a list"),
        (Weather.forecast, "forecast is a method without its object: self would", "Weather().forecast"),
        (
            vars(Weather)["of_class"].__func__,
            "of_class is a method without its object: cls would",
            "Weather()",
        ),
        (partial(print, "x"), "an object of partial is not a function", "with def"),
        (Weather, "the class Weather is not a function", "a method of an object"),
        (has_two_contexts, "parameters ctx and other are both the context", "once"),
        pytest.param(
            takes_typed_dict,
            "this Python does not tell the keys of a typing.TypedDict",
            "TypedDict from typing_extensions",
            marks=pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python 3.12 tells them"),
        ),
        (open_socket, "parameter a has the type socket, which JSON cannot", "a pydantic model"),
        (gives_a_socket, "the result has the type socket, which JSON cannot", "a pydantic model"),
    ],
)
def test_a_function_that_no_call_can_run_is_refused_in_plain_words(
    function: Callable[..., Any], problem: str, remedy: str
) -> None:
    with pytest.raises(InvalidSettingError) as caught:
        read_signature(function, "my_skill")
    assert caught.value.message.startswith(f"skill my_skill: {problem}")
    assert remedy in caught.value.remedy


def test_a_method_of_an_object_is_a_skill() -> None:
    signature = read_signature(Weather().forecast, "s")
    assert list(signature.input_schema["properties"]) == ["city"]
    assert list(read_signature(Weather.of_class, "s").input_schema["properties"]) == ["city"]


def refuse_count(count: int) -> int:
    raise ValueError("this count is taken")


def test_arguments_that_pass_the_schema_but_not_the_type_name_their_place() -> None:
    def skill(at: datetime, plan: Plan, count: Annotated[int, AfterValidator(refuse_count)]) -> None: ...

    with pytest.raises(InvalidParametersError) as caught:
        read_signature(skill, "s").bind({"at": "soon", "plan": {"plan": 5}, "count": 1}, None)
    assert [problem.path for problem in caught.value.problems] == ["at", "plan.plan", "count"]
    assert caught.value.message.startswith("field 'at' must be a date and time such as ")
    assert caught.value.message.endswith("; 'count': Value error, this count is taken; it is an integer")
    assert "soon" not in caught.value.message


# results


def typed_result(annotation: Any, value: Any) -> Any:
    def skill() -> Any: ...

    skill.__annotations__["return"] = annotation
    return read_signature(skill, "skill").encode(value)


@pytest.mark.parametrize(
    ("annotation", "value", "encoded"),
    [
        (Plan, Plan(plan="p", steps=["a"]), {"plan": "p", "steps": ["a"]}),
        (Box, Box(1), {"width": 1, "label": "box"}),
        (datetime, datetime(2026, 1, 2), "2026-01-02T00:00:00"),
        (list[Plan], [Plan(plan="p")], [{"plan": "p", "steps": []}]),
        (set[int], {1}, [1]),
        (dict[int, str], {1: "a"}, {"1": "a"}),
        (Path, Path("a"), "a"),
        (None, None, None),
        (Any, {"a": (1, 2)}, {"a": [1, 2]}),
        (Any, Box(1), {"width": 1, "label": "box"}),
        (Any, Plan(plan="p"), {"plan": "p", "steps": []}),
        (Any, {"a": {1}, "b": frozenset({2}), 3: ()}, {"a": [1], "b": [2], "3": []}),
        (Any, datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (Any, [date(2026, 1, 2), timedelta(seconds=3)], ["2026-01-02", "PT3S"]),
        (Any, {"price": Decimal("1.50")}, {"price": "1.50"}),
        (Any, [Colour.RED, UUID(int=1)], ["red", "00000000-0000-0000-0000-000000000001"]),
        (Any, Path("a"), "a"),
        (Any, b"text", "text"),
        (dict, {"a": {1}, "at": datetime(2026, 1, 2, tzinfo=UTC)}, {"a": [1], "at": "2026-01-02T00:00:00Z"}),
        (Any, "text", "text"),
        (Any, 1.5, 1.5),
        (Any, None, None),
    ],
)
def test_a_result_becomes_a_json_value(annotation: Any, value: Any, encoded: Any) -> None:
    assert typed_result(annotation, value) == encoded


@requirement("P-13")
@pytest.mark.parametrize(
    "value",
    [
        object(),
        {"a": object()},
        2**70,
        "\ud800",
        float("nan"),
        float("inf"),
        {"a": [1.0, float("-inf")]},
        b"\xff",
    ],
    ids=["object", "object-within", "large-integer", "surrogate", "nan", "inf", "inf-within", "bytes"],
)
def test_a_result_that_is_no_json_value_is_refused(value: Any) -> None:
    with pytest.raises(OutputInvalidError) as caught:
        encode_result("create_plan", value)
    assert "create_plan" in caught.value.message
    assert "not a JSON value" in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("annotation", [Any, dict, dict[str, Any]])
@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"a": [1, object()]}, "at a.1: an object"),
        ({"a": {"b": open}}, "at a.b: a builtin_function_or_method"),
        ({"a": b"\xff"}, "at a: bytes that are not UTF-8; return Part.image, Part.audio or base64 text"),
        ({"n": 2**70}, "at n: an integer of more than 64 bits"),
        ({"t": "\ud800"}, "at t: a text with half of a surrogate pair"),
    ],
    ids=["object", "function", "bytes", "integer", "text"],
)
def test_a_value_that_is_no_json_is_named_with_its_path(annotation: Any, value: Any, told: str) -> None:
    with pytest.raises(OutputInvalidError) as caught:
        typed_result(annotation, value)
    assert caught.value.message == f"the result of skill is not a JSON value {told}"
    assert "schema" not in caught.value.message
    assert "pydantic" in caught.value.remedy


@pytest.mark.parametrize("annotation", [list, list[Any], str])
def test_parts_that_an_annotation_does_not_announce_are_refused_with_the_annotation_to_write(
    annotation: Any,
) -> None:
    with pytest.raises(OutputInvalidError) as caught:
        typed_result(annotation, ["a map:", Part.image(b"png")])
    assert str(caught.value) == "the result of skill has content parts that its annotation does not announce"
    assert "-> list[Part | str]" in caught.value.remedy


@pytest.mark.parametrize("annotation", [list[Part | str], Any, object, Part | None])
def test_parts_are_a_result_of_each_annotation_that_has_room_for_them(annotation: Any) -> None:
    parts = ["a map:", Part.image(b"png")]
    assert typed_result(annotation, parts) is parts


def test_a_result_with_null_beside_finite_numbers_is_fine() -> None:
    assert encode_result("s", {"a": None, "b": [1.5, None]}) == {"a": None, "b": [1.5, None]}


@pytest.mark.parametrize("type_", [dict[str, list[float]], dict[str, Any], dict])
def test_a_number_that_is_not_finite_is_refused_in_a_typed_result_as_well(type_: Any) -> None:
    with pytest.raises(OutputInvalidError):
        typed_result(type_, {"a": [1.0, float("nan")]})


@dataclass
class Report:
    """A result of which only the outside has types."""

    title: str
    figures: dict  # type: ignore[type-arg]
    rows: Any = None


class Model(BaseModel):
    """The same as a model that takes more."""

    model_config = ConfigDict(extra="allow")
    report: Report | None = None


@pytest.mark.parametrize(
    ("type_", "value", "path"),
    [
        (Report, Report("t", {"mean": {"x": [1.0, float("nan")]}}), "figures.mean.x.1"),
        (Report, Report("t", {}, rows=({"a": float("inf")},)), "rows.0.a"),
        (Model, Model(report=Report("t", {1: float("-inf")})), "report.figures.1"),
        (Model, Model(more=[float("nan")]), "more.0"),
        (list[Any], [Report("t", {"x": float("nan")})], "0.figures.x"),
        (Any, {"a": Report("t", {"x": float("nan")})}, "a.figures.x"),
        (float, float("nan"), ""),
    ],
)
def test_a_number_that_is_not_finite_is_named_wherever_it_hides(type_: Any, value: Any, path: str) -> None:
    with pytest.raises(OutputInvalidError) as caught:
        typed_result(type_, value)
    assert caught.value.problems[0].path == path
    at = f" at {path}" if path else ""
    assert caught.value.message == f"the result of skill is not a JSON value{at}: a float that is not finite"


def test_a_null_in_a_dataclass_is_fine() -> None:
    assert typed_result(Report, Report("t", {"x": None})) == {
        "title": "t",
        "figures": {"x": None},
        "rows": None,
    }


def test_a_result_that_refers_to_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(OutputInvalidError, match="at 0: a value that contains itself"):
        encode_result("s", loop)
    with pytest.raises(OutputInvalidError):
        typed_result(list[Any], loop)


@pytest.mark.parametrize(
    ("annotation", "default", "problem", "remedy"),
    [
        (int, "3", "the default of count is a string of 1 character, not int", "declare the type of '3'"),
        (str, None, "the default of count is null, not str", "write count: str | None = None"),
        (list[str], "a", "the default of count is a string of 1 character, not list", "give a default"),
    ],
)
def test_a_default_of_the_wrong_type_is_refused(
    annotation: Any, default: Any, problem: str, remedy: str
) -> None:
    def function(count: Any = default) -> None: ...

    function.__annotations__["count"] = annotation
    with pytest.raises(InvalidSettingError) as refused:
        read_signature(function, "f")
    assert problem in refused.value.message
    assert remedy in refused.value.remedy


@pytest.mark.parametrize(
    ("annotation", "default"), [(float, 1), (int | None, None), (Any, object()), (list[int], [])]
)
def test_a_default_of_the_declared_type_is_taken(annotation: Any, default: Any) -> None:
    def function(count: Any = default) -> None: ...

    function.__annotations__["count"] = annotation
    assert read_signature(function, "f").names
