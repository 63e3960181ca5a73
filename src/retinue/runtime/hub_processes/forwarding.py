"""Forwards HTTP requests between the processes of one hub, over the socket of the process that answers.

The process that a client reached adds the addresses of that connection in one header. `restore` sets them
again, so that the process that answers checks the request as if the client had reached it. Only the sockets
in the folder of the hub, which other users cannot enter, are read that way.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import aiohttp
import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from yarl import URL

from retinue.runtime.hub_processes.place import HubPlace
from retinue.web.disconnect import CancelOnDisconnect

ORIGIN = b"x-retinue-hub-process"
"""The header with the addresses of the client's connection, between processes of one hub only."""

WHOLE_BYTES = 256 * 1024
"""A body up to this size is read before it is forwarded; a longer one is forwarded as it comes."""

_HOP = frozenset(
    {
        b"connection",
        b"expect",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        ORIGIN,
    }
)
_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_IDLE_S = 30.0
_ATTEMPTS = 3
"""Idle connections to a process that was just killed fail one by one."""

_HEAD_BYTES = 64 * 1024
_SAFE = frozenset({"GET", "HEAD"})
_LOST = orjson.dumps(
    {"detail": "the process of this hub that had the request has ended; ask again to see what was done"}
)


class Forwarder:
    """Sends requests to the other processes of a hub; close it with `aclose`."""

    def __init__(self, place: HubPlace) -> None:
        self._place = place
        self._sessions: dict[int, aiohttp.ClientSession] = {}

    async def aclose(self) -> None:
        """Close the connections to the other processes."""
        for session in self._sessions.values():
            await session.close()

    def session(self, index: int) -> aiohttp.ClientSession:
        """The HTTP client of one process."""
        session = self._sessions.get(index)
        if session is None:
            connector = aiohttp.UnixConnector(
                self._place.socket_of(index), limit=0, keepalive_timeout=_IDLE_S
            )
            session = self._sessions[index] = aiohttp.ClientSession(
                connector=connector,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                skip_auto_headers=_ADDED,
                max_line_size=_HEAD_BYTES,
                max_field_size=_HEAD_BYTES,
            )
        return session

    async def forward(
        self,
        index: int,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        may_repeat: Callable[[], bool] = lambda: False,
    ) -> None:
        """Let the process ``index`` answer a request.

        A request that changes nothing, by its HTTP method or with ``may_repeat``, is sent again if the
        process ends before it has answered; the sockets stay open meanwhile, so it waits for the process that
        takes over. Any other one gets status 503.
        """
        body: bytes | AsyncIterator[bytes] | None = None
        if (size := _body_size(scope)) is None:
            body = _pieces(receive)
        elif size:
            whole = await _read(receive, size)
            if whole is None:
                return
            body = whole
        attempts = _ATTEMPTS
        while True:
            started = _Started(send)
            try:
                if isinstance(body, bytes | None):
                    with CancelOnDisconnect(receive):
                        await self._exchange(index, scope, body, started)
                else:
                    await self._exchange(index, scope, body, started)
                return
            except (aiohttp.ClientError, OSError) as error:
                if started.has_begun:
                    # the connection to the client ends before its answer is whole
                    raise ConnectionAbortedError(str(error)) from error
                attempts -= 1
                is_safe = isinstance(body, bytes | None) and (scope["method"] in _SAFE or may_repeat())
                if not attempts or not is_safe:
                    await _refuse(send)
                    return

    async def _exchange(
        self, index: int, scope: Scope, body: bytes | AsyncIterator[bytes] | None, send: Send
    ) -> None:
        raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        query: bytes = scope.get("query_string", b"")
        target = raw_path.decode("latin-1") + ("?" + query.decode("latin-1") if query else "")
        url = URL("http://hub" + target, encoded=True)
        async with self.session(index).request(
            scope["method"], url, data=body, headers=_headers(scope), allow_redirects=False
        ) as reply:
            headers = [
                (name.lower(), value)
                for name, value in reply.raw_headers
                if name.lower() not in _HOP and name.lower() != b"date"  # this server adds its own
            ]
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            async for piece in reply.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


class _Started:
    """The ``send`` of a response, which knows whether anything was sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def __call__(self, message: Message) -> None:
        self.has_begun = True
        await self._send(message)


def is_forwarded(scope: Scope) -> bool:
    """Whether a request at the socket of a process was forwarded for a client."""
    return any(name == ORIGIN for name, _ in scope["headers"])


def restored(app: ASGIApp) -> ASGIApp:
    """``app`` behind the socket of a process: each request gets the addresses of its client again."""

    async def restore(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            for name, value in scope["headers"]:
                if name == ORIGIN:
                    with suppress(ValueError, TypeError):
                        client, server, scheme = orjson.loads(value)
                        scope["client"] = tuple(client) if client else None
                        scope["server"] = tuple(server) if server else None
                        scope["scheme"] = scheme
            scope["headers"] = [pair for pair in scope["headers"] if pair[0] != ORIGIN]
        await app(scope, receive, send)

    return restore


def _headers(scope: Scope) -> list[tuple[str, str]]:
    origin = orjson.dumps([scope.get("client"), scope.get("server"), scope.get("scheme", "http")])
    headers = [
        (name.decode("latin-1"), _text_of(value)) for name, value in scope["headers"] if name not in _HOP
    ]
    return [*headers, (ORIGIN.decode(), origin.decode())]


def _text_of(value: bytes) -> str:
    """The text that the client encodes as the bytes of a header, which are nearly always UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _body_size(scope: Scope) -> int | None:
    """The size of the body; None for one that is forwarded as it comes."""
    size = 0
    for name, value in scope["headers"]:
        if name == b"transfer-encoding":
            return None
        if name == b"content-length":
            size = int(value)
    return size if size <= WHOLE_BYTES else None


async def _read(receive: Receive, size: int) -> bytes | None:
    """The body of ``size`` bytes; None if the client went away before its end."""
    pieces: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)


async def _pieces(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ConnectionAbortedError("the client went away")
        if piece := message.get("body", b""):
            yield piece
        if not message.get("more_body", False):
            return


async def _refuse(send: Send) -> None:
    headers: list[tuple[bytes, bytes]] = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(_LOST)).encode()),
        (b"retry-after", b"1"),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": _LOST})


def render_inside(value: Any) -> bytes:
    """JSON for another process; arguments of calls may have integers of more than 64 bits."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value).encode()


def read_inside(body: bytes) -> Any:
    """The value of `render_inside`; orjson would read integers of more than 64 bits as floats."""
    return json.loads(body)


async def request_inside(
    session: aiohttp.ClientSession, method: str, path: str, body: bytes | None = None, *, timeout_s: float
) -> Any:
    """The JSON that another process of a hub answers. Raises OSError and TimeoutError."""
    async with asyncio.timeout(timeout_s):
        try:
            async with session.request(method, f"http://hub{path}", data=body) as reply:
                answer = await reply.read()
                if reply.status != 200:
                    raise OSError(f"it answers with status {reply.status}")
                return read_inside(answer)
        except aiohttp.ClientError as error:
            raise OSError(str(error)) from error
