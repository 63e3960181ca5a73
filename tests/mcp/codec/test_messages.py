"""Messages of MCP on their way through a relay: what is read of them, and what is written into them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import InvalidRequestError, ParseError
from retinue.mcp.codec.messages import (
    is_modern,
    notification,
    parse_message,
    parse_reply,
    render_error,
    render_message,
    render_tool_error,
    status_of,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
PARAMS = st.dictionaries(st.text(max_size=6), JSON, max_size=4)


def _parse(document: Any) -> Any:
    return parse_message(orjson.dumps(document))


@given(PARAMS)
def test_everything_but_the_named_meta_passes_as_it_came(params: dict[str, Any]) -> None:
    """Unknown keys, at the top and in the parameters."""
    document = {"jsonrpc": "2.0", "id": 4, "method": "x/y", "params": params, "later": [1]}
    sent = orjson.loads(render_message(_parse(document), {"trace": "t"}))
    meta = params.get("_meta")
    kept = meta if isinstance(meta, dict) else {}
    assert sent == {**document, "params": {**params, "_meta": {**kept, "trace": "t"}}}


def test_the_kinds_of_messages_are_told_apart() -> None:
    """By what they have: a method and an id, a method alone, an id and a result or an error."""
    assert _parse({"jsonrpc": "2.0", "id": "a", "method": "ping"}).kind == "request"
    assert _parse({"jsonrpc": "2.0", "method": "notifications/initialized"}).kind == "notification"
    assert _parse({"jsonrpc": "2.0", "id": 1, "result": {}}).kind == "response"
    assert _parse({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": ""}}).kind == "response"


@pytest.mark.parametrize(
    "document",
    [
        [],
        [{"jsonrpc": "2.0", "id": 1, "method": "ping"}],
        1,
        {},
        {"jsonrpc": "2.0"},
        {"jsonrpc": "2.0", "id": 1},
        {"id": 1, "method": "ping"},
        {"jsonrpc": "2.0", "method": 1, "id": 1},
    ],
)
def test_what_is_no_message_is_refused(document: Any) -> None:
    """With what would be one; a batch as well, which MCP has no more."""
    with pytest.raises(InvalidRequestError):
        _parse(document)


@pytest.mark.parametrize("message_id", [None, True, 1.5, [1]])
def test_an_id_is_a_string_or_an_integer(message_id: Any) -> None:
    """MCP is stricter than JSON-RPC here."""
    with pytest.raises(InvalidRequestError):
        _parse({"jsonrpc": "2.0", "id": message_id, "method": "ping"})


def test_what_is_no_json_or_too_deep_is_refused() -> None:
    """Before anything walks through it."""
    with pytest.raises(ParseError):
        parse_message(b"{")
    with pytest.raises(ParseError):
        parse_message(b'{"jsonrpc":"2.0","method":"x","params":{"a":' + b"[" * 200 + b"]" * 200 + b"}}")


def test_keys_that_are_dropped_are_dropped_in_any_case() -> None:
    """A claim in other letters must not stand beside the hub's own word."""
    document = {"jsonrpc": "2.0", "method": "n", "params": {"_meta": {"TraceParent": "x", "kept": 1}}}
    sent = orjson.loads(
        render_message(_parse(document), {"traceparent": "y"}, drop=frozenset({"traceparent"}))
    )
    assert sent["params"]["_meta"] == {"kept": 1, "traceparent": "y"}


@pytest.mark.parametrize(
    "document",
    [
        {"jsonrpc": "2.0", "id": 1, "result": {"a": 1}},
        {"jsonrpc": "2.0", "id": 1, "method": "x", "params": [1, 2]},
    ],
)
def test_a_response_and_parameters_by_position_stay_as_they_are(document: dict[str, Any]) -> None:
    """They have no place for ``_meta``."""
    assert orjson.loads(render_message(_parse(document), {"trace": "t"})) == document


def test_a_reply_is_told_from_what_comes_before_it() -> None:
    """Requests and notifications of the server's travel on the same stream."""
    assert parse_reply({"method": "notifications/progress", "params": {}}) is None
    assert parse_reply({"id": 1, "method": "sampling/createMessage"}) is None
    assert parse_reply({"id": 1, "result": 5}) is None
    reply = parse_reply({"id": 1, "result": {"isError": True, "content": [{"text": "oh"}]}})
    assert reply is not None
    assert (reply.is_tool_error, reply.text, reply.needs_input) == (True, "oh", False)
    asked = parse_reply({"id": 1, "result": {"resultType": "input_required"}})
    assert asked is not None
    assert asked.needs_input


def test_what_is_rendered_is_a_reply_again() -> None:
    """Errors and failed tools, in the words of either era."""
    error = parse_reply(orjson.loads(render_error(7, -32602, "Unknown tool: x")))
    assert error is not None
    assert error.error == {"code": -32602, "message": "Unknown tool: x"}
    for modern in (True, False):
        failed = parse_reply(orjson.loads(render_tool_error("a", "it broke", modern=modern)))
        assert failed is not None
        assert failed.is_tool_error
        assert ("resultType" in (failed.result or {})) == modern
    cancelled = _parse(notification("notifications/cancelled", {"requestId": 3}).document)
    assert (cancelled.kind, cancelled.id, cancelled.params) == ("notification", None, {"requestId": 3})


def test_the_era_is_known_by_the_version_header() -> None:
    """None, and the handshake's own versions, mean a session; statuses of errors are the other era's."""
    assert not is_modern(None)
    assert not is_modern("2025-11-25")
    assert is_modern("2026-07-28")
    assert (status_of(-32601, modern=True), status_of(-32601, modern=False)) == (404, 200)
    assert status_of(-33007, modern=True) == 200
