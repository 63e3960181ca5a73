"""From messages to calls, and from results to parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from a2a.types import a2a_pb2 as types
from google.protobuf.json_format import MessageToDict, ParseDict  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from retinue.a2a.codec.calls import (
    choose_skill,
    find_envelope,
    make_arguments,
    read_answer,
    read_named,
    render_result,
    with_whole_numbers,
)
from retinue.a2a.codec.faults import A2aError, render_fault
from retinue.a2a.codec.requests import read_list, read_message, read_push_config, read_send
from retinue.core.call import Part
from retinue.core.record import Skill
from tests.a2a.codec.test_v03 import messages, values
from tests.a2a.wire import find_facts

GREET = Skill(
    "greet",
    input_schema={
        "type": "object",
        "properties": {"name": {"type": "string"}, "times": {"type": "integer"}},
        "required": ["name"],
    },
)
PAIR = Skill(
    "pair",
    input_schema={
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "required": ["a", "b"],
    },
)
ANY = Skill("any")


def read(*parts: Any, **fields: Any) -> Any:
    return read_message({"messageId": "m", "role": "ROLE_USER", "parts": list(parts), **fields})


@given(message=messages)
def test_every_message_of_the_protocol_is_read_and_kept_whole(message: dict[str, Any]) -> None:
    assert dict(read_message(message).json) == {**message, "parts": message["parts"]}
    sdks = MessageToDict(ParseDict(message, types.Message()))
    assert read_message(sdks).id == message["messageId"]


@given(anything=st.recursive(values, lambda inner: st.dictionaries(st.text(), inner), max_leaves=6))
def test_anything_else_is_refused_with_an_error_of_the_protocol(anything: Any) -> None:
    for wrapped in (anything, {"message": anything}, {"message": {"parts": [anything], "role": "ROLE_USER"}}):
        for read_params in (read_send, read_list, read_push_config):
            error = refusal_by(read_params, wrapped)
            assert error is None or error.code in (-32602, -32005)


def refusal_by(read_params: Callable[[Any], Any], params: Any) -> A2aError | None:
    """The error of the reader; any other exception is a failure."""
    try:
        read_params(params)
    except A2aError as error:
        return error
    return None


def test_protobufs_names_of_fields_are_read_as_well() -> None:
    said = {
        "message_id": "m",
        "context_id": "c",
        "role": "ROLE_USER",
        "parts": [{"raw": "eA==", "media_type": "a/b"}],
    }
    message = read_message(said)
    assert (message.id, message.context_id, message.parts[0]["mediaType"]) == ("m", "c", "a/b")
    assert read_message({**said, "metadata": {"task_id": 1}}).metadata == {"task_id": 1}


@pytest.mark.parametrize(
    ("parts", "metadata", "skill", "arguments"),
    [
        ([{"data": {"skill": "greet", "arguments": {"name": "A"}}}], {}, "greet", {"name": "A"}),
        ([{"data": {"skill": "greet"}}, {"text": "A"}], {}, "greet", {"name": "A"}),
        ([{"data": {"skill": "greet"}}, {"data": {"name": "A"}}], {}, "greet", {"name": "A"}),
        ([{"text": "A"}], {"skill": "greet"}, "greet", {"name": "A"}),
        ([{"text": "A"}, {"text": "B"}], {"skill": "greet"}, "greet", {"name": "A\nB"}),
        ([{"text": "A"}, {"data": {"times": 2.0}}], {"skill": "greet"}, "greet", {"times": 2, "name": "A"}),
        ([{"data": {"name": "A"}}], {"skill": "greet"}, "greet", {"name": "A"}),
        ([{"text": "x"}], {"skill": "greet", "arguments": {"name": "A"}}, "greet", {"name": "A"}),
        ([{"data": {"skill": "x", "name": "A"}}], {"skill": "greet"}, "greet", {"skill": "x", "name": "A"}),
        ([{"data": {"a": "1"}}, {"text": "2"}], {"skill": "pair"}, "pair", {"a": "1", "b": "2"}),
        ([{"text": "A"}], {"skill": "any"}, "any", {"text": "A"}),
        ([{"data": [1, 2]}], {"skill": "any"}, "any", [1, 2]),
    ],
)
def test_a_message_names_a_skill_and_gives_its_arguments(
    parts: list[Any], metadata: dict[str, Any], skill: str, arguments: Any
) -> None:
    named = read_named(read(*parts, metadata=metadata), {})
    skills = (GREET, PAIR, ANY)
    chosen = choose_skill(named, skills)
    assert chosen == skill
    assert make_arguments(named, next(one for one in skills if one.id == chosen)) == arguments


def test_a_text_that_has_no_single_place_is_refused_with_the_remedy() -> None:
    with pytest.raises(A2aError, match="pair needs more than a text"):
        make_arguments(read_named(read({"text": "x"}, metadata={"skill": "pair"}), {}), PAIR)


def test_an_envelope_is_found_by_its_performative() -> None:
    envelope = {"performative": "QUERY_CAPABILITIES", "payload": {}}
    assert find_envelope(read({"text": "see"}, {"data": envelope})) == envelope
    assert find_envelope(read({"data": {"skill": "greet"}})) is None


@pytest.mark.parametrize(
    ("parts", "schema", "answer"),
    [
        ([{"text": "Ann"}], {"type": "string"}, "Ann"),
        ([{"text": "3"}], {"type": "integer"}, 3),
        ([{"text": "true"}], {"type": "boolean"}, True),
        ([{"data": 3.0}], {"type": "integer"}, 3),
        ([{"data": {"answer": "x"}}], {"type": "string"}, "x"),
        ([{"text": "3"}], {"type": "object", "properties": {"n": {"type": "integer"}}}, {"n": 3}),
        ([{"data": {"n": 3}}], {"type": "object", "properties": {"n": {"type": "integer"}}}, {"n": 3}),
    ],
)
def test_an_answer_is_data_or_a_text(parts: list[Any], schema: dict[str, Any], answer: Any) -> None:
    assert read_answer(read(*parts), schema) == answer


@given(value=values)
def test_the_sdk_reads_every_result_as_the_value_it_was(value: Any) -> None:
    artifact = ParseDict({"artifactId": "a", "parts": render_result(value, ())}, types.Artifact())
    read_back = MessageToDict(artifact)["parts"][0]
    assert read_back["text" if isinstance(value, str) else "data"] == value


def test_parts_of_every_kind_are_parts_of_the_protocol() -> None:
    given_parts = (
        Part.text("t"),
        Part.image(b"i"),
        Part.audio(b"a"),
        Part.resource("file:///x.txt", "text"),
        Part.resource("file:///x.bin", b"bytes"),
        Part.link("https://example.org/x", "x"),
        Part("data", {"a": 1}, "application/json"),
        Part("text", "n", annotations={"audience": ["user"]}),
    )
    rendered = render_result(None, given_parts)
    assert [next(iter(one)) for one in rendered] == [
        "text",
        "raw",
        "raw",
        "text",
        "raw",
        "url",
        "data",
        "text",
    ]
    ParseDict({"artifactId": "a", "parts": rendered}, types.Artifact())
    assert render_result({"w": 3}, given_parts)[-1] == {"data": {"w": 3}}


@given(value=values)
def test_whole_floats_are_integers(value: Any) -> None:
    assert with_whole_numbers(value) == value
    assert type(with_whole_numbers({"a": [2.0]})["a"][0]) is int
    assert with_whole_numbers(2.5) == 2.5


def test_the_facts_of_an_error_are_found_in_both_versions() -> None:
    error = A2aError(-33007, "RECURSION", "too deep", {"type": "recursion", "path": ["a"]})
    for legacy in (False, True):
        rendered = render_fault(1, error, legacy=legacy)["error"]
        assert find_facts(rendered["data"]) == {"type": "recursion", "path": ["a"]}
        assert rendered["code"] == -33007
