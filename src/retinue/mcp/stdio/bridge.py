"""``retinue mcp``: forwards MCP messages between standard input and output and the running hub.

Clients that only start programs reach the hub of this state through it, with the state's token. Messages
pass unchanged in both directions. The bridge keeps the session and opens another one when the hub was
restarted.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from typing import Any

import orjson
import structlog

from retinue.core.errors import RetinueError
from retinue.mcp.codec.messages import Message, notification, parse_message, render_error
from retinue.mcp.codec.wire import SESSION_HEADER, Incoming, NegotiatedSession
from retinue.mcp.upstream.client import McpResponse, open_response
from retinue.web.addresses import is_loopback_url
from retinue.web.http_client import HttpClient
from retinue.web.transport import TransportError

_LOST = -32000

_COME_BACK_S = 0.5

_DRAIN_S = 30.0
"""How long requests are still answered after the end of the input, as when a script pipes them in."""

_LISTS = ("tools", "resources", "prompts")


Write = Callable[[bytes], Awaitable[None]]

_log = structlog.get_logger("retinue.bridge")


class _SessionGoneError(Exception):
    """The hub does not know our session: it was restarted, or has forgotten it."""

    def __init__(self, session: str | None) -> None:
        super().__init__(session)
        self.session = session


@dataclass(slots=True)
class _Handshake:
    """The opening of the client's session, which is repeated to another hub, and its result."""

    initialize: Message
    wire: NegotiatedSession = field(default_factory=NegotiatedSession)
    renewing: asyncio.Lock = field(default_factory=asyncio.Lock)


class Bridge:
    """Carries messages between one client and the hub.

    ``find_hub`` gives the hub's URL and starts one where none runs; ``find_running`` only looks.
    ``path`` is the endpoint: the hub's own or that of one agent.
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
        """Serve until the client closes its end and its requests are answered."""
        try:
            async for line in lines:
                if line.strip():
                    await self._take(line)
            if self._running:
                await asyncio.wait(self._running.values(), timeout=_DRAIN_S)
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
            # in a task of its own: a slow call must not hold up the next message
            task = asyncio.create_task(self._answer(message))
            self._running[message.id] = task
            task.add_done_callback(lambda _: self._forget(message.id, task))
            if message.method == "initialize":
                # what follows belongs to the session that this opens, whether or not the client waits for it
                await asyncio.wait([task])
            return
        if message.method == "notifications/cancelled" and self._handshake is None:
            running = self._running.get(message.params.get("requestId"))
            if running is not None:
                running.cancel()  # in 2026-07-28 the end of its stream cancels a request
            return
        try:
            await self._carry(message)
        except (RetinueError, TransportError, _SessionGoneError) as error:
            _log.warning("message lost", method=message.method, error=str(error))
        if message.method == "notifications/initialized" and self._handshake is not None:
            self._listen()

    def _forget(self, message_id: Any, task: asyncio.Task[None]) -> None:
        if self._running.get(message_id) is task:
            del self._running[message_id]

    async def _answer(self, message: Message) -> None:
        """Forward a request and respond to the client in every case."""
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
        """Forward one message and its response; whether a request was answered.

        Repeated once where the hub certainly did nothing with it: no hub there, or one that does not
        know the session.
        """
        if message.method == "initialize" and message.kind == "request":
            self._handshake = _Handshake(message)
        is_lost = is_renewed = False
        while True:
            try:
                return await self._post(message)
            except TransportError as error:
                self._url = None
                if is_lost or (error.sent and message.method == "tools/call"):
                    raise
                is_lost = True
            except _SessionGoneError as gone:
                if is_renewed or message.kind == "response":
                    raise
                await self._renew(gone.session)
                is_renewed = True

    async def _post(self, message: Message) -> bool:
        handshake = self._handshake
        is_opening = handshake is not None and message is handshake.initialize
        async with self._open("POST", await self._target(), message) as response:
            if response.is_session_gone:
                raise _SessionGoneError(response.session)
            if handshake is not None and is_opening:
                handshake.wire.session = response.headers.get(SESSION_HEADER)
            while batch := await response.next():
                if response.is_stream or message.kind == "request":
                    for incoming in batch:
                        if handshake is not None and is_opening:
                            _note_version(handshake.wire, incoming)
                        await self._pass_on(incoming, message)
            if message.kind != "request" or response.reply is not None:
                return True
            if response.is_stream:
                return False
            await self._write(_render_refusal(message, response))
            return True

    async def _pass_on(self, incoming: Incoming, message: Message | None = None) -> None:
        """One message of the hub to the client, in one line."""
        document = incoming.document
        if document is None:
            return
        if message is not None and incoming.reply is not None and document.get("id") is None:
            # an error from before the hub knew which request it was
            await self._write(orjson.dumps({**document, "id": message.id}))
            return
        await self._write(incoming.data)

    def _open(
        self, method: str, target: str, message: Message | None = None
    ) -> AbstractAsyncContextManager[McpResponse]:
        wire = NegotiatedSession() if self._handshake is None else self._handshake.wire
        headers = wire.headers_of(message)
        if is_loopback_url(target):
            # the token of this machine's state is secret elsewhere
            headers["authorization"] = f"Bearer {self._token}"
        return open_response(self._http, method, target, headers, message)

    async def _renew(self, lost: str | None) -> None:
        """Replace the session ``lost``; repeat the client's earlier messages to the hub."""
        handshake = self._handshake
        if handshake is None:
            raise _SessionGoneError(lost)
        async with handshake.renewing:
            if handshake.wire.session != lost:
                return  # another message has done it
            # the old id stays until then: a message sent with it meanwhile gets 404 and waits here
            target = await self._target()
            async with self._open("POST", target, handshake.initialize) as response:
                session = response.headers.get(SESSION_HEADER)
                while await response.read_some():
                    pass
            if response.status != 200 or session is None:
                raise _SessionGoneError(lost)
            handshake.wire.session = session
            async with self._open("POST", target, notification("notifications/initialized")) as response:
                await response.read()
        self._listen()
        for kind in _LISTS:
            changed = notification(f"notifications/{kind}/list_changed")
            await self._write(orjson.dumps(changed.document))

    def _listen(self) -> None:
        """Keep the session's own stream open, on which the hub sends on its own."""
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._keep_listening())

    async def _keep_listening(self) -> None:
        """Wait for a stopped hub and do not start it, because the client has no open request."""
        while True:
            self._url = self._url or (self._find_running() or "").rstrip("/") or None
            if self._url is not None:
                try:
                    async with self._open("GET", self._url + self._path) as response:
                        if response.status == 404:
                            await self._renew(response.session)
                        elif response.status != 200:
                            return
                        else:
                            while batch := await response.next():
                                for incoming in batch:
                                    await self._pass_on(incoming)
                except (RetinueError, TransportError, _SessionGoneError):
                    self._url = None
            await asyncio.sleep(_COME_BACK_S)

    async def _end_session(self) -> None:
        handshake = self._handshake
        if handshake is None or handshake.wire.session is None or self._url is None:
            return
        with suppress(RetinueError, TransportError, TimeoutError):
            async with asyncio.timeout(2.0), self._open("DELETE", self._url + self._path) as response:
                await response.read()

    async def _target(self) -> str:
        if self._url is None:
            self._url = (await self._find_hub()).rstrip("/")
        return self._url + self._path


def _note_version(wire: NegotiatedSession, incoming: Incoming) -> None:
    result = None if incoming.reply is None else incoming.reply.result
    if result is not None:
        wire.version = str(result.get("protocolVersion"))


def _render_refusal(message: Message, response: McpResponse) -> bytes:
    """A response to ``message`` in place of an HTTP answer that holds none."""
    try:
        document = orjson.loads(response.body or b"")
    except orjson.JSONDecodeError:
        document = None
    detail = document.get("detail") if isinstance(document, dict) else None
    text = detail if isinstance(detail, str) else f"the hub answered with status {response.status}"
    return render_error(message.id, _LOST, text)


_WAITING_LINES = 1000


async def read_lines(descriptor: int) -> AsyncIterator[bytes]:
    """The lines of a descriptor of any kind, read by a thread that blocks while no line is taken."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes | None] = asyncio.Queue()
    room = threading.Semaphore(_WAITING_LINES)

    def read() -> None:
        with os.fdopen(os.dup(descriptor), "rb") as stream:
            for line in stream:
                room.acquire()
                loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while (line := await lines.get()) is not None:
        room.release()
        yield line
