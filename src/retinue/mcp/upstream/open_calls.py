"""The requests in flight to one server: their limit, and the choice of the call that a question belongs to.

A question that comes on the stream of a call belongs to it. On standard streams, and on the GET stream of
a session, a question names no call (https://modelcontextprotocol.io/specification/2025-11-25). It must not
reach another caller, so it is given to a call only when no other can have asked:

- Its ``_meta`` names the progress token of a call.
- One call is in flight that has no open question. Otherwise the question is held, and no new call begins,
  until the others have ended.
- If as many questions are held as calls could have asked, none of these can end: the last one is refused.

Calls of such a tool run one after the other from then on, so that this happens once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from retinue.core.errors import BusyError, InputRequiredError
from retinue.mcp.codec.messages import MessageId
from retinue.mesh.channel import Channel

MAX_IN_FLIGHT = 200
"""Requests to one server at once. It also ends a loop through a server that forwards no trace, because each
round of such a loop is a new chain of calls to the guard, and one more request in flight here.
"""

HOLD_S = 10.0
"""How long a question waits for the calls that cannot have asked it to end."""


class RequestLimit:
    """At most `MAX_IN_FLIGHT` requests to ``server`` at once."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._in_flight = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count a request as in flight while inside. Raises BusyError when as many as may be are."""
        if self._in_flight >= MAX_IN_FLIGHT:
            raise BusyError(f"{self._in_flight} requests to server {self._server} are in flight", 1.0)
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1


@dataclass(slots=True, eq=False)
class OpenCall:
    """A call in flight; ``questions`` counts its open questions.

    A question of one that ``is_task`` names its task, so that another call has asked one that names none.
    """

    name: str
    channel: Channel
    is_task: bool = False
    questions: int = 0

    @contextmanager
    def asking(self) -> Iterator[Channel]:
        """Its channel, for one question."""
        self.questions += 1
        try:
            yield self.channel
        finally:
            self.questions -= 1


class OpenCalls:
    """The calls in flight of one session with ``server``."""

    def __init__(self, server: str, *, hold_s: float = HOLD_S) -> None:
        self._server = server
        self._hold_s = hold_s
        self._open: dict[MessageId, OpenCall] = {}
        self._held = 0
        self._is_clear = asyncio.Event()
        """Whether no question is held."""
        self._is_clear.set()
        self._ended = asyncio.Event()
        """Set by the end of a call, and by a question that is not held any more."""
        self._asking: dict[str, asyncio.Lock] = {}
        """The tools that have asked without naming their call."""

    def __len__(self) -> int:
        return len(self._open)

    @asynccontextmanager
    async def running(
        self, call_id: MessageId, name: str, channel: Channel, *, is_task: bool = False
    ) -> AsyncIterator[None]:
        """Count a call as in flight while inside; may wait until it can begin."""
        turn = self._asking.get(name)
        if turn is not None:
            await turn.acquire()
        try:
            if self._held:
                await self._is_clear.wait()
            self._open[call_id] = OpenCall(name, channel, is_task)
            try:
                yield
            finally:
                del self._open[call_id]
                self._ended.set()
        finally:
            if turn is not None:
                turn.release()

    def find_only(self) -> Channel | None:
        """The channel of the only call in flight."""
        return next(iter(self._open.values())).channel if len(self._open) == 1 else None

    def find_by_token(self, document: Mapping[str, Any]) -> OpenCall | None:
        """The call whose progress token the message names, in ``params`` or in their ``_meta``."""
        params = document.get("params")
        if not isinstance(params, Mapping):
            return None
        meta = params.get("_meta")
        named = meta if isinstance(meta, Mapping) and "progressToken" in meta else params
        token = named.get("progressToken")
        return self._open.get(token) if isinstance(token, str | int) else None

    async def find_asker(self, document: Mapping[str, Any]) -> OpenCall:
        """The call that a question belongs to. Raises InputRequiredError where that cannot be known."""
        named = self.find_by_token(document)
        if named is not None:
            return named
        self._held += 1
        self._is_clear.clear()
        try:
            async with asyncio.timeout(self._hold_s):
                asker = await self._wait_for_only_candidate()
        except TimeoutError:
            raise self._unclear() from None
        finally:
            self._held -= 1
            self._ended.set()
            if not self._held:
                self._is_clear.set()
        self._asking.setdefault(asker.name, asyncio.Lock())
        return asker

    async def _wait_for_only_candidate(self) -> OpenCall:
        while True:
            calls = list(self._open.values())
            calls = [call for call in calls if not call.is_task] or calls
            candidates = [call for call in calls if not call.questions] or calls
            if len(candidates) == 1:
                return candidates[0]
            if self._held >= len(candidates):
                raise self._unclear()
            self._ended.clear()
            await self._ended.wait()

    def _unclear(self) -> InputRequiredError:
        count = len(self)
        if count == 0:
            return InputRequiredError(f"server {self._server} asks while no call is in flight")
        return InputRequiredError(
            f"server {self._server} asks, and which of its {count} calls in flight it asks for is unclear",
            remedy="call the tool again; its calls run one after the other from now on",
        )
