"""Pure codec of server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html).

A stream is cut into its events as the bytes come in; each event keeps its bytes, so that a relay can
hand it on exactly as it was.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from retinue.core.errors import TooLargeError

MAX_EVENT_BYTES = 32 * 1024 * 1024
"""One event; what a peer answers over ``/execute`` is capped at the same size."""

_LINE_END = re.compile(rb"\r\n|\n|\r")
# Atomic groups: a lone "\r\n" must not count as two ends of lines.
_EVENT_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LONGEST_END = 4


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its bytes with the empty line that ends it, and what they say.

    ``data`` is ``b""`` for comments and for the event that only gives a stream its first ``id``.
    """

    raw: bytes
    data: bytes
    name: str = "message"
    id: str | None = None


class EventParser:
    """Takes a stream in pieces of any size and gives its events as soon as they are whole."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._limit = max_event_bytes
        self._held = bytearray()
        self._searched = 0

    @property
    def is_between_events(self) -> bool:
        """Whether nothing is held back: a stream that ends here ends in order."""
        return not self._held

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that ``chunk`` completes, in order; raises TooLargeError for an endless one."""
        held = self._held
        held += chunk
        events: list[Event] = []
        start = 0
        while (end := _EVENT_END.search(held, max(start, self._searched))) is not None:
            events.append(parse_event(bytes(held[start : end.end()])))
            start = self._searched = end.end()
        del held[:start]
        # an end of an event may be cut in two by the end of a piece
        self._searched = max(0, len(held) - _LONGEST_END + 1)
        if len(held) > self._limit:
            raise TooLargeError("an event", self._limit)
        return events


def parse_event(raw: bytes) -> Event:
    """What the lines of one event say; fields that nobody knows are passed over."""
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
    return Event(raw, b"\n".join(data), name, event_id)


def render_event(data: bytes) -> bytes:
    """One event with these data, which hold no end of a line."""
    return b"event: message\r\ndata: " + data + b"\r\n\r\n"
