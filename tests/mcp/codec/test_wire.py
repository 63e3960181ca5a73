"""MCP over HTTP as a client speaks it: headers of both eras, and responses in pieces of any size."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from retinue.mcp.codec.messages import Message, notification, parse_message
from retinue.mcp.codec.wire import Ending, Incoming, NegotiatedSession, ResponseReader, encode_header

EVENTS = {"content-type": "text/event-stream; charset=utf-8"}
JSON = {"content-type": "application/json"}
REPLY = {"jsonrpc": "2.0", "id": 1, "result": {"content": []}}
ASKED = {"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": {}}
TOLD = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1}}


def _request(method: str, params: dict[str, Any] | None = None) -> Message:
    document = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
    return parse_message(orjson.dumps(document))


def _modern(method: str, **params: Any) -> Message:
    return _request(method, {**params, "_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}})


def _event(document: Any, event_id: str | None = None) -> bytes:
    given = b"" if event_id is None else b"id: " + event_id.encode() + b"\n"
    return given + b"data: " + orjson.dumps(document) + b"\n\n"


def _reader(
    status: int = 200, headers: dict[str, str] = EVENTS, session: str | None = None
) -> ResponseReader:
    return ResponseReader(status, headers, _request("tools/call"), session)


def test_a_message_in_a_session_names_the_session_and_its_version() -> None:
    """All but ``initialize``, which opens another."""
    wire = NegotiatedSession("2025-11-25", "s1")
    called = wire.headers_of(_request("tools/call", {"name": "x"}))
    assert (called["mcp-session-id"], called["mcp-protocol-version"]) == ("s1", "2025-11-25")
    assert "mcp-method" not in called
    assert "mcp-session-id" not in wire.headers_of(_request("initialize"))
    assert wire.headers_of(notification("notifications/initialized"))["mcp-session-id"] == "s1"
    listening = wire.headers_of(None)
    assert (listening["accept"], listening["mcp-session-id"]) == ("text/event-stream", "s1")


@pytest.mark.parametrize(
    ("method", "params", "name"),
    [
        ("tools/call", {"name": "grüße"}, encode_header("grüße")),
        ("resources/read", {"uri": "test://a"}, "test://a"),
        ("prompts/get", {"name": "greet"}, "greet"),
        ("tools/list", {}, None),
        ("tools/call", {"name": 5}, None),
    ],
)
def test_a_message_of_2026_carries_its_method_and_name(
    method: str, params: dict[str, Any], name: str | None
) -> None:
    """And never a session, even of a client that has one."""
    headers = NegotiatedSession("2025-11-25", "s1").headers_of(_modern(method, **params))
    assert (headers["mcp-protocol-version"], headers["mcp-method"]) == ("2026-07-28", method)
    assert headers.get("mcp-name") == name
    assert "mcp-session-id" not in headers


@pytest.mark.parametrize("size", range(1, 40))
def test_a_stream_is_read_alike_wherever_it_is_cut(size: int) -> None:
    """Comments, notifications, requests and the response, each with its bytes; nothing after it."""
    parts = [b": ping\n\n", _event(TOLD), b"data: no json\n\n", _event(ASKED, "7"), _event(REPLY, "8")]
    stream = b"".join(parts)
    reader, found = _reader(), list[Incoming]()
    for at in range(0, len(stream), size):
        found += reader.feed(stream[at : at + size])
    assert [one.raw for one in found] == parts
    assert [one.document for one in found] == [None, TOLD, None, ASKED, REPLY]
    assert [one.question_id for one in found] == [None, None, None, "q", None]
    assert [one.event_id for one in found] == [None, None, None, "7", "8"]
    assert reader.reply is found[-1].reply is not None
    assert (reader.is_over, reader.is_resumable, reader.ending) == (True, True, "complete")


def test_nothing_after_the_response_counts() -> None:
    """On a GET, which answers no message, everything does."""
    stream = _event(REPLY) + _event(TOLD)
    assert len(_reader().feed(stream)) == 1
    listening = ResponseReader(200, EVENTS, None, "s1")
    assert len(listening.feed(stream)) == 2
    assert not listening.is_over


def test_a_body_is_one_message() -> None:
    """Of JSON; every other type is none."""
    body = orjson.dumps(REPLY)
    reader = _reader(headers={"content-type": "application/json; charset=utf-8"})
    (incoming,) = reader.read_body(body)
    assert (incoming.raw, incoming.data, incoming.event_id) == (body, body, None)
    assert reader.ending == "complete"
    page = _reader(headers={"content-type": "text/html"})
    assert page.read_body(body) == []
    assert page.ending == "not_jsonrpc"


@pytest.mark.parametrize(
    ("stream", "ending"),
    [
        (b"", "cut"),
        (_event(TOLD), "cut"),
        (_event(TOLD, "1"), "continued"),
        (_event(TOLD, "1") + b"data: {", "cut"),
        (_event(REPLY)[:-1], "cut"),
        (_event(REPLY), "complete"),
    ],
)
def test_a_stream_that_ends_early_is_cut_or_goes_on_elsewhere(stream: bytes, ending: Ending) -> None:
    """Elsewhere only where the client has an id to go on with."""
    reader = _reader()
    reader.feed(stream)
    assert reader.ending == ending


@pytest.mark.parametrize(
    ("status", "body", "in_session", "ending"),
    [
        (404, b"<html>", False, "no_endpoint"),
        (405, b"", False, "no_endpoint"),
        (501, b"", False, "no_endpoint"),
        (404, b"", True, "complete"),
        (404, b"<html>", True, "not_jsonrpc"),
        (404, orjson.dumps({"id": 1, "error": {"code": -32601, "message": "x"}}), False, "complete"),
        (500, b"oh", False, "not_jsonrpc"),
        (429, b"", False, "complete"),
        (200, b"", False, "not_jsonrpc"),
        (200, b"{", False, "not_jsonrpc"),
    ],
)
def test_what_a_body_without_a_response_means(
    status: int, body: bytes, in_session: bool, ending: Ending
) -> None:
    """A missing endpoint is told from a lost session, and both from an answer that is no message."""
    reader = _reader(status, JSON, "s1" if in_session else None)
    reader.read_body(body)
    assert reader.ending == ending
    assert reader.is_session_gone == (in_session and status == 404)


def test_a_notification_wants_no_response() -> None:
    """202 without a body is all that comes; a body that is no message is still one too much."""
    for status, body, ending in [(202, b"", "complete"), (404, b"", "complete"), (404, b"x", "no_endpoint")]:
        reader = ResponseReader(status, {}, notification("notifications/initialized"))
        reader.read_body(body)
        assert reader.ending == ending
