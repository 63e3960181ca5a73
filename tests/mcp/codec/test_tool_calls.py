"""A tool call as a client writes it: what it asks, what it hears, and the value that it reads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.inbound import validate_mcp_param_headers
from starlette.datastructures import Headers

from retinue.core.errors import CallTooDeepError, CannotAskError, RemoteFaultError
from retinue.core.record import Skill
from retinue.mcp.codec.content import render_call_result, render_error_result
from retinue.mcp.codec.messages import parse_reply
from retinue.mcp.codec.tool_calls import (
    Feedback,
    ToolCall,
    list_questions,
    param_headers,
    parse_feedback,
    read_answer,
    read_state,
)
from retinue.mcp.codec.wire import encode_header

OBJECT = {"type": "object"}
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def _reply(result: dict[str, Any]) -> Any:
    return parse_reply({"jsonrpc": "2.0", "id": 1, "result": result})


def _error(code: int, message: str, data: Any = None) -> Any:
    error = {"code": code, "message": message, "data": data}
    return parse_reply({"jsonrpc": "2.0", "id": 1, "error": error})


@given(VALUES)
def test_a_value_with_a_schema_is_read_as_the_endpoint_wrote_it(value: Any) -> None:
    """Objects plain, everything else out of its wrapping."""
    schema = OBJECT if isinstance(value, dict) else {"anyOf": [{"type": "array"}, {"type": "string"}, {}]}
    answer = read_answer(_reply(render_call_result(value, (), schema)), "a", Skill("s", output_schema=schema))
    assert (answer.value, answer.parts) == (value, ())


@given(st.text(max_size=50))
def test_a_text_is_the_raw_text(text: str) -> None:
    """The result of seed 004, on its way out and back (exchange 4-4)."""
    schema = {"type": "string"}
    answer = read_answer(_reply(render_call_result(text, (), schema)), "a", Skill("s", output_schema=schema))
    assert answer.value == text


@pytest.mark.parametrize(
    ("text", "structured", "kept"),
    [
        ("two\nlines", {"content": "two\nlines"}, True),
        ('{"content":  "a"}', {"content": "a"}, False),
        ("[1]", {"content": "a"}, True),
    ],
)
def test_the_words_of_a_server_stay_beside_its_data_unless_they_are_its_json(
    text: str, structured: dict[str, Any], kept: bool
) -> None:
    skill = Skill("s", output_schema={"type": "object"})
    result = {"content": [{"type": "text", "text": text}], "structuredContent": structured}
    answer = read_answer(_reply(result), "a", skill)
    assert answer.value == structured
    assert [part.value for part in answer.parts] == ([text] if kept else [])
    shown = render_call_result(answer.value, answer.parts, skill.output_schema)
    assert shown["structuredContent"] == structured
    assert (shown["content"] == result["content"]) is kept


def test_what_a_client_can_be_asked_is_declared_and_nothing_else() -> None:
    """Progress and log lines are wanted only where somebody listens."""
    skill = Skill("s", input_schema={"type": "array"})
    quiet = ToolCall(skill, [1], frozenset()).as_message("c", "1").params
    assert quiet["arguments"] == {"input": [1]}
    assert quiet["_meta"]["io.modelcontextprotocol/clientCapabilities"] == {}
    assert "progressToken" not in quiet["_meta"]
    wide = frozenset({"progress", "log", "elicitation"})
    call = ToolCall(Skill("s"), {}, wide, {"q": {"action": "accept"}}, "state")
    loud = call.as_message("c", "1").params
    assert loud["_meta"]["io.modelcontextprotocol/clientCapabilities"] == {"elicitation": {}}
    assert loud["_meta"]["progressToken"]
    assert loud["requestState"] == "state"
    assert loud["inputResponses"] == {"q": {"action": "accept"}}


def test_progress_and_log_lines_are_told_from_everything_else() -> None:
    """A part of a total where there is one; levels that we do not have fall to the nearest."""

    def told(method: str, **params: Any) -> Feedback | None:
        return parse_feedback({"jsonrpc": "2.0", "method": method, "params": params})

    assert told("notifications/progress", progress=1, total=4, message="x") == Feedback("progress", "x", 0.25)
    assert told("notifications/progress", progress=7) == Feedback("progress", "", None)
    assert told("notifications/message", level="notice", data="x") == Feedback("log", "x", level="info")
    assert told("notifications/message", level="alert", data={"message": "x", "n": 1}) == Feedback(
        "log", "x", level="error", data={"n": 1}
    )
    assert told("notifications/message", level="info", data=[1]) == Feedback("log", "[1]")
    assert told("notifications/tools/list_changed") is None
    assert parse_feedback({"id": 1, "result": {}}) is None


def test_failures_keep_what_the_agent_says_of_them() -> None:
    """An unknown tool as ``/execute`` would say it, so that the card is read again."""
    failed = render_error_result("it broke", {"type": "timeout"})
    for reply, code, kind in [
        (_reply(failed), -32603, "timeout"),
        (_error(-32602, "Unknown tool: s"), -32601, "unknown_skill"),
    ]:
        with pytest.raises(RemoteFaultError) as caught:
            read_answer(reply, "a", Skill("s"))
        assert (caught.value.code, caught.value.remote_type) == (code, kind)
    with pytest.raises(CallTooDeepError) as too_deep:
        read_answer(_error(-33007, "too deep", {"type": "recursion_limit", "depth": 6}), "a", Skill("s"))
    assert (too_deep.value.relayed, too_deep.value.depth) == (True, 6)
    with pytest.raises(CannotAskError, match="sampling"):
        read_answer(_error(-32021, "no", {"requiredCapabilities": {"sampling": {}}}), "a", Skill("s"))


def test_questions_are_read_with_the_name_of_the_call_that_waits() -> None:
    """What is no question is passed over."""
    asked = {"a": {"method": "roots/list"}, "b": {"method": "x", "params": {"n": 1}}, "c": 5}
    reply = _reply({"resultType": "input_required", "inputRequests": asked, "requestState": "s"})
    assert reply.needs_input
    assert list(list_questions(reply)) == [("a", "roots/list", {}), ("b", "x", {"n": 1})]
    assert read_state(reply) == "s"


@pytest.mark.parametrize("name", ["plain", "fs:read", "grüße", " edge", "=?base64?eA==?=", "line\nbreak", ""])
def test_a_name_survives_a_header(name: str) -> None:
    """As the SDK's servers read it."""
    from mcp.shared.inbound import decode_header_value

    sent = encode_header(name)
    assert sent.isascii()
    assert "\n" not in sent
    assert decode_header_value(sent) == name


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "text": st.text(st.characters(codec="utf-8"), max_size=12),
            "flag": st.booleans(),
            "inner": st.fixed_dictionaries({}, optional={"number": st.integers(-(2**53), 2**53)}),
        },
    )
)
def test_the_headers_that_repeat_arguments_are_those_that_the_sdk_accepts(arguments: dict[str, Any]) -> None:
    number = {"type": "object", "properties": {"number": {"type": "integer", "x-mcp-header": "Number"}}}
    text, flag = ({"type": kind, "x-mcp-header": kind.title()} for kind in ("string", "boolean"))
    schema = {"type": "object", "properties": {"text": text, "flag": flag, "inner": number}}
    headers = param_headers(schema, arguments)
    assert validate_mcp_param_headers(schema, arguments, Headers(headers)) is None
    known = {"text", "flag"} & set(arguments) | ({"number"} & set(arguments.get("inner", {})))
    assert len(headers) == len(known)


@pytest.mark.parametrize("name", ["a b", "a\r\nhost", "", "ä", 7])
def test_a_name_that_no_header_can_have_is_left_out(name: Any) -> None:
    schema = {"properties": {"x": {"type": "string", "x-mcp-header": name}}}
    assert param_headers(schema, {"x": "y"}) == {}
