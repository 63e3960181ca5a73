"""``retinue mcp``: MCP over standard input and output, handed on to the running hub message by message.

Clients that only start programs reach the one hub of this state that way, with the state's token. What
the client says goes to the hub as it is, what the hub says comes back as it is; the bridge keeps the
session, and opens a new one where the hub has been started anew meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson
import structlog

from retinue.core.errors import RetinueError
from retinue.drivers.http import HttpClient, HttpStream, TransportError
from retinue.drivers.peers import is_loopback
from retinue.protocols.mcp.messages import (
    Message,
    is_modern,
    parse_message,
    render_error,
)
from retinue.protocols.mcp.sse import EventParser
from retinue.protocols.mcp.tool_calls import encode_header

SESSION = "mcp-session-id"
VERSION = "mcp-protocol-version"
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
EVENT_STREAM = "text/event-stream"

_LOST = -32000
_COME_BACK_S = 0.5
_LISTS = ("tools", "resources", "prompts")
_NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}

Write = Callable[[bytes], Awaitable[None]]
_log = structlog.get_logger("retinue.bridge")


class _SessionGoneError(Exception):
    """The hub does not know our session: it was started anew, or has forgotten it."""

    def __init__(self, session: str | None) -> None:
        super().__init__(session)
        self.session = session


@dataclass(slots=True)
class _Handshake:
    """What the client opened its session with, to be said again to another hub."""

    initialize: Message
    version: str | None = None
    session: str | None = None
    confirmed: bool = False
    renewing: asyncio.Lock = field(default_factory=asyncio.Lock)


class Bridge:
    """Carries messages between one client and the hub.

    ``find_hub`` gives the hub's url and starts one where none runs; ``is_there`` only looks.
    ``path`` is the door: the hub's own or that of one agent.
    """

    def __init__(
        self,
        http: HttpClient,
        write: Write,
        find_hub: Callable[[], Awaitable[str]],
        find_running: Callable[[], str | None],
        *,
        token: str,
        path: str = "/mcp",
    ) -> None:
        self._http = http
        self._write = write
        self._find_hub = find_hub
        self._find_running = find_running
        self._token = token
        self._path = path
        self._url: str | None = None
        self._handshake: _Handshake | None = None
        self._running: dict[Any, asyncio.Task[None]] = {}
        self._listening: asyncio.Task[None] | None = None

    async def run(self, lines: AsyncIterator[bytes]) -> None:
        """Serve until the client closes its end."""
        try:
            async for line in lines:
                if line.strip():
                    await self._take(line)
        finally:
            tasks = [*self._running.values(), *([self._listening] if self._listening else ())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._end_session()

    async def _take(self, line: bytes) -> None:
        try:
            message = parse_message(line)
        except RetinueError as error:
            await self._write(render_error(None, -32700, error.message))
            return
        if message.kind == "request":
            # each by itself: a slow call must not hold up the next message
            task = asyncio.create_task(self._answer(message))
            self._running[message.id] = task
            task.add_done_callback(lambda _: self._forget(message.id, task))
            return
        if message.method == "notifications/cancelled" and self._handshake is None:
            running = self._running.get(message.params.get("requestId"))
            if running is not None:
                running.cancel()  # of 2026-07-28: the end of its stream says it
            return
        try:
            await self._carry(message)
        except (RetinueError, TransportError, _SessionGoneError) as error:
            _log.warning("message lost", method=message.method, error=str(error))
        if message.method == "notifications/initialized" and self._handshake is not None:
            self._handshake.confirmed = True
            self._listen()

    def _forget(self, message_id: Any, task: asyncio.Task[None]) -> None:
        if self._running.get(message_id) is task:
            del self._running[message_id]

    async def _answer(self, message: Message) -> None:
        """A request, to its answer: whatever happens on the way, the client hears of it."""
        try:
            if await self._carry(message):
                return
            problem = "the hub ended its answer early"
        except _SessionGoneError:
            problem = "the hub does not know this session"
        except TransportError as error:
            problem = f"the hub was lost during the call: {error.cause}"
        except RetinueError as error:
            problem = f"{error.message} ({error.remedy})" if error.remedy else error.message
        await self._write(render_error(message.id, _LOST, problem))

    async def _carry(self, message: Message) -> bool:
        """Hand one message to the hub and its answer to the client; whether a request was answered.

        Once more where certainly nothing came of it: no hub there, or one that does not know us.
        """
        if message.method == "initialize" and message.kind == "request":
            self._handshake = _Handshake(message)
        lost = renewed = False
        while True:
            try:
                return await self._post(message)
            except TransportError as error:
                self._url = None
                if lost or (error.sent and message.method == "tools/call"):
                    raise
                lost = True
            except _SessionGoneError as gone:
                if renewed or message.kind == "response":
                    raise
                await self._renew(gone.session)
                renewed = True

    async def _post(self, message: Message) -> bool:
        target = await self._target()
        headers = self._headers(message)
        known = headers.get(SESSION)
        async with self._http.stream(
            "POST", target, headers=headers, body=orjson.dumps(message.document)
        ) as reply:
            if reply.status == 404 and known is not None:
                raise _SessionGoneError(known)
            self._note_session(message, reply)
            if reply.headers.get("content-type", "").startswith(EVENT_STREAM):
                return await self._pass_events(reply, message)
            body = await reply.read()
            if message.kind != "request":
                return True
            await self._pass(_as_reply(message, reply.status, body), message)
            return True

    async def _pass_events(self, reply: HttpStream, message: Message | None) -> bool:
        parser, answered = EventParser(), False
        while chunk := await reply.read_some():
            for event in parser.feed(chunk):
                if event.data:
                    document = orjson.loads(event.data)
                    answered = answered or "method" not in document
                    await self._pass(document, message)
                    if answered and message is not None:
                        return True
        return answered

    async def _pass(self, document: Any, message: Message | None) -> None:
        """One message of the hub's to the client, in one line."""
        handshake = self._handshake
        if message is not None and handshake is not None and message is handshake.initialize:
            result = document.get("result") if isinstance(document, dict) else None
            if isinstance(result, dict):
                handshake.version = str(result.get("protocolVersion"))
        await self._write(orjson.dumps(document))

    def _headers(self, message: Message | None) -> dict[str, str]:
        headers = {"accept": f"application/json, {EVENT_STREAM}", "content-type": "application/json"}
        if self._url is not None and is_loopback(self._url):
            # it is the token of this machine's state, which is nobody's business elsewhere
            headers["authorization"] = f"Bearer {self._token}"
        version = message.meta.get(VERSION_KEY) if message is not None else None
        if message is not None and isinstance(version, str) and is_modern(version):
            headers |= {VERSION: version, "mcp-method": message.method}
            name = message.params.get(_NAMED_BY.get(message.method, ""))
            if isinstance(name, str):
                headers["mcp-name"] = encode_header(name)
            return headers
        handshake = self._handshake
        if handshake is not None and message is not handshake.initialize:
            if handshake.session is not None:
                headers[SESSION] = handshake.session
            if handshake.version is not None:
                headers[VERSION] = handshake.version
        return headers

    def _note_session(self, message: Message, reply: HttpStream) -> None:
        handshake = self._handshake
        if handshake is not None and message is handshake.initialize:
            handshake.session = reply.headers.get(SESSION)

    async def _renew(self, lost: str | None) -> None:
        """Open a session in the place of ``lost``, with what the client said to the hub before."""
        handshake = self._handshake
        if handshake is None:
            raise _SessionGoneError(lost)
        async with handshake.renewing:
            if handshake.session != lost:
                return  # another message has done it
            # kept until there is another: who sends with it meanwhile is told that it is gone, and waits here
            initialize = handshake.initialize
            target = await self._target()
            headers = self._headers(initialize)
            body = orjson.dumps(initialize.document)
            async with self._http.stream("POST", target, headers=headers, body=body) as reply:
                session = reply.headers.get(SESSION)
                while await reply.read_some():
                    pass
            if reply.status != 200 or session is None:
                raise _SessionGoneError(lost)
            handshake.session = session
            confirm = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            headers = self._headers(None)
            async with self._http.stream(
                "POST", target, headers=headers, body=orjson.dumps(confirm)
            ) as reply:
                await reply.read()
        self._listen()
        for kind in _LISTS:
            told = {"jsonrpc": "2.0", "method": f"notifications/{kind}/list_changed"}
            await self._write(orjson.dumps(told))

    def _listen(self) -> None:
        """Keep the session's own stream open, on which the hub says what it says by itself."""
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._keep_listening())

    async def _keep_listening(self) -> None:
        """A hub that somebody has stopped is waited for, not started: nobody has asked for anything."""
        while True:
            self._url = self._url or (self._find_running() or "").rstrip("/") or None
            if self._url is not None:
                try:
                    headers = self._headers(None)
                    headers["accept"] = EVENT_STREAM
                    async with self._http.stream("GET", self._url + self._path, headers=headers) as reply:
                        if reply.status == 404:
                            await self._renew(headers.get(SESSION))
                        elif reply.status != 200:
                            return
                        else:
                            await self._pass_events(reply, None)
                except (RetinueError, TransportError, _SessionGoneError, orjson.JSONDecodeError):
                    self._url = None
            await asyncio.sleep(_COME_BACK_S)

    async def _end_session(self) -> None:
        handshake = self._handshake
        if handshake is None or handshake.session is None or self._url is None:
            return
        with suppress(RetinueError, TransportError):
            url = self._url + self._path
            await self._http.request("DELETE", url, headers=self._headers(None), timeout_s=2.0)

    async def _target(self) -> str:
        if self._url is None:
            self._url = (await self._find_hub()).rstrip("/")
        return self._url + self._path


def _as_reply(message: Message, status: int, body: bytes) -> Any:
    """What the hub answered, as a reply to this request: refusals at its threshold are no messages."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    if isinstance(document, dict) and ("result" in document or "error" in document):
        if document.get("id") is None:
            document["id"] = message.id
        return document
    said = document.get("detail") if isinstance(document, dict) else None
    text = said if isinstance(said, str) else f"the hub answered with status {status}"
    return orjson.loads(render_error(message.id, _LOST, text))
