"""What calls of a process of a hub say of skills, for the history that the leader keeps."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from retinue.mesh.history.search_history import EndedCall, is_search_id, read_ended_call
from retinue.mesh.observing.events import CallEndedEvent, Event, EventBus

MAX_KEPT = 10_000
"""Calls that wait for a leader that has ended; beyond that the oldest are dropped."""

_MAX_EXPECTED = 1_000


class LedHistory:
    """The ended calls of this process that the leader has not heard of; none until the leader has searches.

    A call that names its search is kept in any case: the first search may be older than the leader's message.
    ``events`` are those of the calls.
    """

    def __init__(self, events: EventBus) -> None:
        self._events = events
        self._is_watching = False
        self._is_subscribed = False
        self._expected: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._ended: deque[EndedCall] = deque(maxlen=MAX_KEPT)

    def __bool__(self) -> bool:
        return bool(self._ended)

    def watch(self, is_watching: bool) -> None:
        """Observe calls from now on, or no longer."""
        self._is_watching = is_watching
        if is_watching:
            self._subscribe()

    def _subscribe(self) -> None:
        if not self._is_subscribed:
            self._is_subscribed = True
            self._events.subscribe_later(self.observe)

    def expect(self, trace: str, skill: str, search: str) -> None:
        """Remember that a call of this trace names its search; as `SearchHistory.expect`."""
        if is_search_id(search):
            self._subscribe()
            self._expected[trace, skill] = search
            if len(self._expected) > _MAX_EXPECTED:
                self._expected.popitem(last=False)

    def observe(self, event: Event) -> None:
        """Keep what an ended call says; an observer of the event bus."""
        if not (self._is_watching or self._expected):
            return
        if not isinstance(event, CallEndedEvent) or event.is_message:
            return
        search = self._expected.pop((event.call.trace.id, event.call.skill), "")
        ended = read_ended_call(event) if self._is_watching or search else None
        if ended is not None:
            self._ended.append(ended._replace(search=search) if search else ended)

    @contextmanager
    def taken(self) -> Iterator[Sequence[EndedCall]]:
        """The calls to send; they are kept if they cannot be sent."""
        ended = list(self._ended)
        self._ended.clear()
        try:
            yield ended
        except BaseException:
            self._ended.extendleft(reversed(ended))
            raise
