"""JSON-RPC 2.0, both directions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import InvalidRequestError, OutOfMemoryError, ParseError, RetinueError, TooLargeError
from retinue.web.codec.jsonrpc import (
    ErrorReply,
    Malformed,
    Request,
    ResultReply,
    parse_message,
    parse_response,
    render_batch,
    render_error,
    render_request,
    render_result,
)
from tests.requirements import requirement
from tests.strategies import integers, json_values, params, request_ids, texts


def parse_one(message: Any) -> Request | Malformed:
    is_batch, entries = parse_message(orjson.dumps(message))
    assert not is_batch
    return entries[0]


def refused(entry: Request | Malformed) -> Malformed:
    assert isinstance(entry, Malformed)
    assert isinstance(entry.error, InvalidRequestError)
    return entry


@requirement("P-07")
@given(texts, params, request_ids)
def test_a_rendered_request_is_read_back(method: str, given_params: Any, request_id: Any) -> None:
    is_batch, entries = parse_message(render_request(method, given_params, request_id))
    assert not is_batch
    assert entries == [Request(method, given_params, request_id, notification=False)]
    assert type(entries[0].id) is type(request_id)


@requirement("P-08")
def test_the_orchestrators_request_has_the_seeds_keys_in_its_order() -> None:
    rendered = render_request("create_plan", {"requirements": "..."})
    assert rendered == b'{"jsonrpc":"2.0","method":"create_plan","params":{"requirements":"..."},"id":"orch"}'


@requirement("P-09")
@given(request_ids, json_values)
def test_a_rendered_result_is_read_back(request_id: Any, value: Any) -> None:
    assert parse_response(render_result(request_id, value)) == ResultReply(request_id, value)


@requirement("P-09")
def test_a_result_has_exactly_the_seeds_keys() -> None:
    assert list(orjson.loads(render_result("orch", {"plan": "..."}))) == ["jsonrpc", "result", "id"]


@given(request_ids, integers.filter(lambda code: abs(code) < 2**31), texts, json_values)
def test_a_rendered_error_is_read_back(request_id: Any, code: int, message: str, data: Any) -> None:
    assert parse_response(render_error(request_id, code, message, data)) == ErrorReply(
        request_id, code, message, data
    )


def test_an_error_without_data_has_no_such_key() -> None:
    assert orjson.loads(render_error("orch", -32601, "Unknown skill: x")) == {
        "jsonrpc": "2.0",
        "error": {"code": -32601, "message": "Unknown skill: x"},
        "id": "orch",
    }


@given(st.lists(st.tuples(texts, params, request_ids), min_size=1, max_size=5))
def test_a_batch_keeps_its_order(requests: list[tuple[str, Any, Any]]) -> None:
    is_batch, entries = parse_message(render_batch([render_request(*request) for request in requests]))
    assert is_batch
    assert entries == [Request(*request, notification=False) for request in requests]


@given(st.binary(max_size=60) | json_values.map(orjson.dumps))
def test_junk_is_refused_with_an_error_of_ours_and_never_crashes(body: bytes) -> None:
    for parse in (parse_message, parse_response):
        with suppress(RetinueError):
            parse(body)


@pytest.mark.parametrize("request_id", ["orch", "", 1, 0, -7, 2**64 - 1, 1.5, None])
def test_an_id_keeps_value_and_type(request_id: Any) -> None:
    entry = parse_one({"method": "m", "id": request_id})
    assert isinstance(entry, Request)
    assert entry.id == request_id
    assert type(entry.id) is type(request_id)
    assert not entry.notification


def test_a_request_without_id_is_a_notification() -> None:
    assert parse_one({"jsonrpc": "2.0", "method": "m"}) == Request("m", {}, None, notification=True)


@pytest.mark.parametrize("message", [{"method": "m", "id": 1}, {"method": "m", "id": 1, "params": None}])
def test_absent_params_and_an_absent_version_are_taken(message: dict[str, Any]) -> None:
    assert parse_one(message) == Request("m", {}, 1, notification=False)


@pytest.mark.parametrize("bad", [True, {}, []])
def test_an_id_of_another_type_is_refused_under_the_id_null(bad: Any) -> None:
    entry = refused(parse_one({"method": "m", "id": bad}))
    assert entry.id is None
    assert "id must be" in entry.error.message


def test_an_integer_id_beyond_64_bits_is_refused_because_it_could_not_be_echoed() -> None:
    _, entries = parse_message(b'{"method": "m", "id": 12345678901234567890123}')
    assert "send it as a string" in refused(entries[0]).error.message


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"jsonrpc": "1.0", "method": "m"}, "jsonrpc"),
        ({"jsonrpc": "2.0"}, "method is missing"),
        ({"jsonrpc": "2.0", "method": 1}, "method must be a string, not a number"),
        ({"jsonrpc": "2.0", "method": None}, "not null"),
        ({"jsonrpc": "2.0", "method": "m", "params": "bar"}, "params"),
        ({"jsonrpc": "2.0", "method": "m", "params": False}, "not a boolean"),
    ],
)
def test_a_wrong_field_is_named_and_answered_under_the_requests_id(fields: dict[str, Any], word: str) -> None:
    entry = refused(parse_one({**fields, "id": 7}))
    assert entry.id == 7
    assert word in entry.error.message


def test_a_batch_answers_each_entry_for_itself() -> None:
    is_batch, entries = parse_message(b'[1, {"method": "m", "id": "a"}, {"foo": "boo"}]')
    assert is_batch
    assert [type(entry) for entry in entries] == [Malformed, Request, Malformed]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", ParseError),
        (b"{", ParseError),
        (b'{"method": "m", "params": NaN}', ParseError),
        (b'{"method": "\xff"}', ParseError),
        (b"[]", InvalidRequestError),
        (b'"[[["', InvalidRequestError),
        (b"null", InvalidRequestError),
        (b"[" + b",".join([b"1"] * 1001) + b"]", TooLargeError),
    ],
)
def test_a_message_that_is_wrong_as_a_whole_raises(body: bytes, error: type[RetinueError]) -> None:
    with pytest.raises(error):
        parse_message(body)


def test_a_batch_of_exactly_the_cap_is_read() -> None:
    assert len(parse_message(b"[" + b",".join([b"1"] * 1000) + b"]")[1]) == 1000


@pytest.mark.parametrize("levels", [129, 500, 2000])
def test_nesting_over_the_limit_names_the_limit(levels: int) -> None:
    # The message itself is the first level.
    nested = b"[" * (levels - 1) + b"]" * (levels - 1)
    with pytest.raises(ParseError, match="128 levels"):
        parse_message(b'{"method":"m","params":' + nested + b"}")


def test_nesting_up_to_the_limit_is_read_whatever_the_number_of_brackets() -> None:
    nested = b"[" * 127 + b"]" * 127
    assert isinstance(parse_message(b'{"method":"m","params":' + nested + b"}")[1][0], Request)
    flat = b"[" + b",".join([b"[]"] * 500) + b"]"
    assert isinstance(parse_message(b'{"method":"m","params":' + flat + b"}")[1][0], Request)


def test_replies_of_careless_servers_are_understood() -> None:
    assert parse_response(b'{"result": 1, "error": null, "id": 1}') == ResultReply(1, 1)
    assert parse_response(b'{"result": null, "id": 1}') == ResultReply(1, None)
    assert parse_response(b'{"error": "boom", "id": {}}') == ErrorReply(None, -32603, "boom")
    assert parse_response(b'{"error": {"code": "x"}}') == ErrorReply(None, -32603, "the error has no message")


@pytest.mark.parametrize("body", [b"[]", b"1", b'{"id": 1}'])
def test_json_that_is_no_reply_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        parse_response(body)


@pytest.mark.parametrize("parse", [parse_message, parse_response])
def test_a_message_that_memory_does_not_suffice_for_may_be_sent_again(
    parse: Callable[[bytes], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(body: bytes) -> None:
        raise orjson.JSONDecodeError("Not enough memory to allocate buffer for parsing", "", 0)

    monkeypatch.setattr(orjson, "loads", fail)
    with pytest.raises(OutOfMemoryError, match="no memory to read a message of 2 bytes") as error:
        parse(b"{}")
    assert error.value.kind.retryable


@pytest.mark.parametrize("brackets", [200, 1_000, 5_000])
def test_open_brackets_are_no_lack_of_memory(brackets: int) -> None:
    with pytest.raises(ParseError):
        parse_message(b"[" * brackets)
