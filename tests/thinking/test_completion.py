"""The format of the skill ``complete``: what is written is read again, and what is read has a place."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import InvalidParametersError
from retinue.thinking.completion import CompletionReply, CompletionRequest
from tests.strategies import json_values
from tests.thinking.conversations import replies, requests, without_nothing

USER = {"role": "user", "content": [{"type": "text", "text": "How warm is it?"}]}
CALL = {"id": "c1", "name": "weather", "arguments": {"city": "Rome"}}
REPLY = {"text": "", "calls": [CALL], "finish": "calls", "model": "m", "provider": "p"}
ASSISTANT = {"role": "assistant", "reply": REPLY}
RESULT = {"id": "c1", "name": "weather", "content": [{"type": "text", "text": "31"}], "is_error": False}
TOOL = {"role": "tool", "results": [RESULT]}


def read(**fields: Any) -> CompletionRequest:
    return CompletionRequest.from_json({"system": "Be brief.", "messages": [USER], **fields})


@given(requests)
def test_a_request_that_was_written_as_json_is_read_as_the_same_request(request: CompletionRequest) -> None:
    assert CompletionRequest.from_json(orjson.loads(orjson.dumps(request.to_json()))) == request


@given(replies)
def test_a_reply_that_was_written_as_json_is_read_as_the_same_reply(reply: CompletionReply) -> None:
    assert CompletionReply.from_json(orjson.loads(orjson.dumps(reply.to_json()))) == reply


@given(requests)
def test_members_that_may_be_absent_have_their_defaults(request: CompletionRequest) -> None:
    assert CompletionRequest.from_json(without_nothing(request.to_json())) == request


@given(json_values)
def test_any_other_value_is_refused_with_a_typed_error(value: Any) -> None:
    for from_json in (CompletionRequest.from_json, CompletionReply.from_json):
        with pytest.raises(InvalidParametersError):
            from_json(value)


@given(requests, st.data())
def test_a_request_with_one_damaged_member_is_read_or_refused_with_a_typed_error(
    request: CompletionRequest, data: st.DataObject
) -> None:
    document = request.to_json()
    document[data.draw(st.sampled_from(sorted(document)))] = data.draw(json_values)
    with suppress(InvalidParametersError):
        CompletionRequest.from_json(document)


def test_a_conversation_with_calls_and_their_results_is_read() -> None:
    request = read(
        messages=[USER, ASSISTANT, TOOL, {"role": "assistant", "reply": {**REPLY, "calls": []}}, USER]
    )
    assert [message.to_json()["role"] for message in request.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [ASSISTANT, TOOL]}, "messages"),
        ({"messages": [USER, ASSISTANT]}, "messages[1]"),
        ({"messages": [USER, ASSISTANT, USER]}, "messages[2]"),
        ({"messages": [USER, TOOL]}, "messages[1].results"),
        ({"messages": [USER, ASSISTANT, {"role": "tool", "results": []}]}, "messages[2].results"),
        (
            {"messages": [USER, ASSISTANT, {"role": "tool", "results": [RESULT, RESULT]}]},
            "messages[2].results",
        ),
        (
            {"messages": [USER, ASSISTANT, {"role": "tool", "results": [{**RESULT, "name": "other"}]}]},
            "messages[2].results",
        ),
        ({"messages": [{"role": "system", "content": []}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].data"),
        (
            {"messages": [USER, {"role": "assistant", "reply": {**REPLY, "calls": [CALL, CALL]}}, TOOL]},
            "messages[1].reply.calls",
        ),
        (
            {
                "messages": [
                    USER,
                    {"role": "assistant", "reply": {**REPLY, "calls": [{**CALL, "arguments": 1}]}},
                ]
            },
            "messages[1].reply.calls[0].arguments",
        ),
        ({"tools": [{"name": "a b", "description": "", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "a", "description": "", "input_schema": []}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "a", "description": "", "input_schema": {}}] * 2}, "tools"),
        ({"tools": [{"name": f"t{n}", "input_schema": {}} for n in range(129)]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"output_schema": "object"}, "output_schema"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"system": None}, "system"),
    ],
)
def test_the_error_names_the_place_of_the_problem(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidParametersError) as caught:
        read(**fields)
    assert [problem.path for problem in caught.value.problems] == [place]
    assert place in caught.value.message
