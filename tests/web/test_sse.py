"""Server-sent events: cut out of a stream in pieces of any size, without losing a byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import TooLargeError
from retinue.web.codec.sse import EventParser, ServerSentEvent, parse_event, render_event

ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
LINES = st.sampled_from([b"data: a", b"data:b", b"event: message", b"id: 7", b": ping", b"retry: 5", b"data"])
EVENTS = st.lists(st.tuples(st.lists(LINES, min_size=1, max_size=4), ENDS), max_size=6)


@given(EVENTS, st.lists(st.integers(1, 9), min_size=1))
def test_events_are_the_same_in_pieces_of_any_size(
    events: list[tuple[list[bytes], bytes]], sizes: list[int]
) -> None:
    """Whatever ends the lines, and wherever a piece ends."""
    stream = b"".join(b"".join(line + end for line in lines) + end for lines, end in events)
    parser, events_in_pieces, at, turn = EventParser(), [], 0, 0
    while at < len(stream):
        size = sizes[turn % len(sizes)]
        events_in_pieces += parser.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
    in_pieces = [(event.data, event.id) for event in events_in_pieces if event.data or event.id]
    whole = [(event.data, event.id) for event in EventParser().feed(stream) if event.data or event.id]
    assert in_pieces == whole
    assert b"".join(event.raw for event in events_in_pieces) + parser.unfinished == stream


@given(st.binary(max_size=200), st.integers(1, 7))
def test_no_byte_of_any_stream_is_lost(stream: bytes, size: int) -> None:
    """What is no event passes as what it is."""
    parser = EventParser()
    found = [event for at in range(0, len(stream), size) for event in parser.feed(stream[at : at + size])]
    assert b"".join(event.raw for event in found) + parser.unfinished == stream


def test_an_event_says_its_data_its_name_and_its_id() -> None:
    """Lines of data are joined; one space after the colon belongs to the format."""
    raw = b"event: message\r\nid: 3\r\ndata: {\r\ndata:  1}\r\n\r\n"
    assert parse_event(raw) == ServerSentEvent(raw, b"{\n 1}", "message", "3")
    assert parse_event(b": ping\n\n").data == b""
    assert parse_event(b"id: a\0b\n\n").id is None


def test_what_is_rendered_is_read_again() -> None:
    """One event, and nothing held back after it."""
    parser = EventParser()
    (event,) = parser.feed(render_event(b'{"a":1}'))
    assert (event.data, event.name) == (b'{"a":1}', "message")
    assert parser.is_between_events


def test_an_event_without_an_end_is_cut_off() -> None:
    """What never ends would fill the memory; many small ones do not."""
    parser = EventParser(max_event_bytes=100)
    for _ in range(50):
        assert len(parser.feed(b"data: " + b"x" * 20 + b"\n\n")) == 1
    for _ in range(12):
        assert parser.feed(b"data: x\n") == []
    with pytest.raises(TooLargeError):
        parser.feed(b"data: x\n")
    assert not parser.is_between_events
