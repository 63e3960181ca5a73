"""Pure codec of server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html).

The parser is incremental. Each event keeps its raw bytes, so that a relay can forward it unchanged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from retinue.core.errors import TooLargeError

MAX_EVENT_BYTES = 32 * 1024 * 1024
"""Maximum size of one event, the same as of a reply at ``/execute``."""

_LINE_END = re.compile(rb"\r\n|\n|\r")
# Two line ends; a single "\r\n" is one. Each alternative begins with a character, so that the search skips
# all others: with a group in front it takes ten times as long.
_EVENT_END = re.compile(rb"\r\n(?:\r\n|\n|\r)|\n(?:\r\n|\n|\r)|\r\r\n?")
_LONGEST_END = 4


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event: its raw bytes including the empty line at its end, and its fields.

    ``data`` is ``b""`` for comments and for an event that only sets the ``id`` of the stream.
    """

    raw: bytes
    data: bytes
    name: str = "message"
    id: str | None = None


class EventParser:
    """Incremental parser: takes chunks of any size, returns events as soon as they are complete."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._limit = max_event_bytes
        self._buffer = bytearray()
        self._searched = 0

    @property
    def is_between_events(self) -> bool:
        """Whether the buffer is empty, so that a stream ending here is not truncated."""
        return not self._buffer

    @property
    def unfinished(self) -> bytes:
        """The beginning of an event whose end has not come."""
        return bytes(self._buffer)

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """The events that ``chunk`` completes, in order. Raises TooLargeError for an event over the limit."""
        buffer = self._buffer
        buffer += chunk
        events: list[ServerSentEvent] = []
        start = 0
        while (end := _EVENT_END.search(buffer, max(start, self._searched))) is not None:
            events.append(parse_event(bytes(buffer[start : end.end()])))
            start = self._searched = end.end()
        del buffer[:start]
        # the end of an event may be split between two chunks
        self._searched = max(0, len(buffer) - _LONGEST_END + 1)
        if len(buffer) > self._limit:
            raise TooLargeError("an event", self._limit)
        return events


def parse_event(raw: bytes) -> ServerSentEvent:
    """Parse the lines of one event; unknown fields are ignored."""
    name, event_id = "message", None
    data: list[bytes] = []
    for line in _LINE_END.split(raw):
        field, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.decode("utf-8", "replace")
        elif field == b"id" and b"\0" not in value:
            event_id = value.decode("utf-8", "replace")
    return ServerSentEvent(raw, b"\n".join(data), name, event_id)


def render_event(data: bytes) -> bytes:
    """Render one event; ``data`` must not contain line ends."""
    return b"event: message\r\ndata: " + data + b"\r\n\r\n"
