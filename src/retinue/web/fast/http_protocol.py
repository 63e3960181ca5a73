"""Adds the limits of a `ConnectionGate` to uvicorn's HTTP/1.1 protocol.

Bytes are counted per piece that arrives and exactly only past a limit, so a usual request costs four method
calls more. A connection enters the lists of the gate only while its request is incomplete. Trailers of a
chunked body are counted as a head and then dropped, because they must not replace headers that were checked.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import httptools
import orjson
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from retinue.web.codec.peer_requests import STOPPING
from retinue.web.connection_gate import MIN_PROGRESS_BYTES, ConnectionGate, Refusal, Waiting
from retinue.web.fast.joined_writes import JoinedWrites

FREE_BODY_BYTES = 64 * 1024
"""This much of each body is not counted as held, so that small requests are served whatever others send."""

MAX_PIPELINED = 256

_LINGER_S = 1.0
_LINGER_BYTES = 8 * 1024 * 1024
_HEADER_EXTRA_BYTES = 4
"""Colon, space and line end."""

_MALFORMED = Refusal(400, "malformed request", "this is not a valid HTTP/1.1 request")
_NO_MEMORY = Refusal(503, "no memory", "this server has no memory to read the request")
_TOO_MANY_PIPELINED = Refusal(
    429, "too many pipelined requests", f"more than {MAX_PIPELINED} requests were sent ahead"
)


# The phases of a connection; members of an enum cost a quarter of a microsecond for each use.
_HEAD: Final = 1
_BODY: Final = 2
_IDLE: Final = 3
_REFUSED: Final = 4


class _RefusedError(Exception):
    """Ends the parser from a callback."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


class LimitedHttpProtocol(HttpToolsProtocol, Waiting):
    """One connection of a server, within the limits of its gate."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        gate: ConnectionGate,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._gate = gate
        self._max_head_bytes = gate.limits.head_bytes
        self._max_headers = gate.limits.headers
        self._phase = _HEAD
        self._is_waiting = False
        self.url = b""
        self.headers = []
        self._piece_bytes = 0
        self._head_bytes = 0  # of all pieces of the unfinished head
        self._first_bytes = 0  # of its first piece, which may hold the end of another message
        self._body_bytes = 0
        self._body_bytes_before = 0  # when the last piece had arrived
        self._idle_bytes = 0  # of pieces without content: trailers and chunk extensions
        self._window_bytes = 0
        self._held: dict[RequestResponseCycle, int] = {}
        self._lingering: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(JoinedWrites(transport, self.loop))
        if not self._gate.has_room(len(self.connections)) and not self._make_room():
            self.refuse(self._gate.no_room)
            return
        self._await_head()

    def _make_room(self) -> bool:
        """Close the connection that has waited longest for its head, or an idle one."""
        waiting = self._gate.find_longest_waiting()
        if waiting is not None:
            waiting.refuse(self._gate.evicted)
            return True
        idle = next((connection for connection in self.connections if _is_idle(connection)), None)
        if idle is None:
            return False
        idle.shutdown()
        return True

    def shutdown(self) -> None:
        """As of uvicorn; a request that it cancels afterwards is answered with 503 instead of 500."""
        super().shutdown()
        for cycle in (self.cycle, *(waiting for waiting, _ in self.pipeline)):
            if cycle is not None:
                cycle.send_500_response = partial(_answer_failed, cycle)  # type: ignore[method-assign]

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._end_wait()
        for cycle in list(self._held):
            self._release(cycle)
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
            self._gate.end_linger()
        self._phase = _REFUSED

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._phase == _REFUSED:
            self._idle_bytes += len(data)
            if self._idle_bytes > _LINGER_BYTES:
                self.transport.abort()
            return
        if self._phase == _IDLE:
            self._phase = _HEAD
            self._head_bytes = self._first_bytes = 0
        self._piece_bytes = len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # no other protocol is spoken here; the request is answered as any other
        except httptools.HttpParserError as error:
            cause = error.__context__
            refusal = _NO_MEMORY if isinstance(cause, MemoryError) else _MALFORMED
            self.refuse(cause.refusal if isinstance(cause, _RefusedError) else refusal)
            return
        if self._phase == _IDLE:
            if self._is_waiting:
                self._end_wait()
        elif self._phase == _HEAD:
            self._check_unfinished_head()
        else:
            self._check_unfinished_body()

    # callbacks of the parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._phase = _HEAD
        self._head_bytes = 0
        self._first_bytes = self._piece_bytes

    def on_headers_complete(self) -> None:
        if self._head_bytes + self._piece_bytes > self._max_head_bytes:
            self._check_head_bytes()
        if len(self.headers) > self._max_headers:
            raise _RefusedError(self._gate.too_many_headers)
        if len(self.pipeline) >= MAX_PIPELINED:
            raise _RefusedError(_TOO_MANY_PIPELINED)
        super().on_headers_complete()
        if self._gate.is_leaving:
            # uvicorn then closes the connection behind the response, and says so in its head
            self.cycle.keep_alive = False
        self.headers = []  # takes the trailers; the request keeps its own list
        self._phase = _BODY
        self._body_bytes = self._body_bytes_before = self._idle_bytes = self._window_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > FREE_BODY_BYTES:
            self._hold(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._phase = _IDLE

    # incomplete requests

    def _await_head(self) -> None:
        self._is_waiting = True
        self._gate.await_head(self)

    def _end_wait(self) -> None:
        self._is_waiting = False
        self._gate.end_wait(self)

    def _check_head_bytes(self) -> None:
        head_bytes = len(self.url) + sum(len(n) + len(v) + _HEADER_EXTRA_BYTES for n, v in self.headers)
        if head_bytes > self._max_head_bytes:
            raise _RefusedError(self._gate.head_too_large)

    def _check_unfinished_head(self) -> None:
        self._head_bytes += self._piece_bytes
        if self.cycle is None or self.cycle.response_complete:
            self._await_head()
        elif self._is_waiting:  # the time limit of an idle connection begins with the response
            self._end_wait()
        try:
            if self._head_bytes - self._first_bytes > self._max_head_bytes:
                raise _RefusedError(self._gate.head_too_large)
            if len(self.headers) > self._max_headers:
                raise _RefusedError(self._gate.too_many_headers)
            if self._head_bytes > self._max_head_bytes:
                self._check_head_bytes()
        except _RefusedError as error:
            self.refuse(error.refusal)

    def _check_unfinished_body(self) -> None:
        self._is_waiting = True
        self._gate.await_body(self)
        self._window_bytes += self._piece_bytes
        if self._body_bytes != self._body_bytes_before:
            self._body_bytes_before = self._body_bytes
            self._idle_bytes = 0
            return
        self._idle_bytes += self._piece_bytes
        if len(self.headers) > self._max_headers:
            self.refuse(self._gate.too_many_headers)
        elif self._idle_bytes > self._max_head_bytes:
            self.refuse(self._gate.head_too_large)

    def check_progress(self, now_s: float) -> None:
        """Refuse a body that did not bring `MIN_PROGRESS_BYTES` in the last ``limits.body_s``.

        Time in which this server does not read does not count.
        """
        if self.flow.read_paused or self.cycle.waiting_for_100_continue:
            self.waiting_since_s = now_s
        elif now_s - self.waiting_since_s >= self._gate.limits.body_s:
            if self._window_bytes < MIN_PROGRESS_BYTES:
                self.refuse(self._gate.body_too_slow)
                return
            self.waiting_since_s = now_s
            self._window_bytes = 0

    # bodies held until their request is answered

    def _hold(self, count: int) -> None:
        cycle = self.cycle
        if cycle.response_complete or self._gate.is_streamed(cycle.scope["path"]):
            return
        if self._gate.held_bytes + count > self._gate.limits.held_bytes:
            raise _RefusedError(self._gate.too_much_held)
        if cycle not in self._held:
            self._held[cycle] = 0
            cycle.on_response = partial(self._respond_and_release, cycle, cycle.on_response)
        self._held[cycle] += count
        self._gate.held_bytes += count

    def _respond_and_release(self, cycle: RequestResponseCycle, on_response: Any) -> None:
        self._release(cycle)
        on_response()

    def _release(self, cycle: RequestResponseCycle) -> None:
        self._gate.held_bytes -= self._held.pop(cycle, 0)

    # refusals

    def refuse(self, refusal: Refusal) -> None:
        """Send the refusal, unless another response would come first or has begun, and close."""
        if self._phase == _REFUSED or self.transport.is_closing():
            return
        is_answered = self._may_answer()
        self._phase = _REFUSED
        self._end_wait()
        self._gate.note(refusal)
        self.pipeline.clear()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.waiting_for_100_continue = False
            self.cycle.message_event.set()
        if not is_answered:
            self.transport.abort()
            return
        self.transport.write(self._render(refusal))
        if not self._gate.may_linger():
            self.transport.close()
            return
        # closing with unread data would reset the connection, and the client would not see the response
        self._idle_bytes = 0
        self.flow.resume_reading()
        self.transport.write_eof()
        self._lingering = self.loop.call_later(_LINGER_S, self.transport.abort)

    def _may_answer(self) -> bool:
        if self.cycle is None:
            return True
        if self._phase == _BODY:
            return not (self.cycle.response_started or self.pipeline)
        return self.cycle.response_complete

    def _render(self, refusal: Refusal) -> bytes:
        body = orjson.dumps({"detail": refusal.detail})
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        if refusal.status in (429, 503):
            headers.append((b"retry-after", b"1"))
        lines = [name + b": " + value + b"\r\n" for name, value in headers]
        return b"".join([STATUS_LINE[refusal.status], *lines, b"\r\n", body])


async def _answer_failed(cycle: RequestResponseCycle) -> None:
    """Answer a request that failed while the server stops; called where the failure is handled."""
    if not isinstance(sys.exception(), asyncio.CancelledError):
        await RequestResponseCycle.send_500_response(cycle)
        return
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await cycle.send({"type": "http.response.start", "status": 503, "headers": headers})
    await cycle.send({"type": "http.response.body", "body": STOPPING, "more_body": False})


def close_idle(connections: Iterable[object]) -> None:
    """Close the connections that wait for a next request."""
    for connection in list(connections):
        if isinstance(connection, LimitedHttpProtocol) and _is_idle(connection):
            connection.shutdown()


def _is_idle(connection: object) -> bool:
    """Whether the connection waits for a next request."""
    return isinstance(connection, LimitedHttpProtocol) and connection.timeout_keep_alive_task is not None
