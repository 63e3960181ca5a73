"""The standard streams of an agent that serves MCP on them: they carry protocol messages only.

The descriptors are taken before the agent's file is imported, so that its prints go to standard error and
its reads of standard input find the end. The SDK's own transport reads in a thread that cannot be stopped,
so that a signal would wait for the client's next line.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

import anyio
import anyio.streams.memory
import mcp_types as types
import structlog
from mcp.shared.message import SessionMessage

_log = structlog.get_logger("retinue.stdio")

DRAIN_S = 30.0
"""How long requests are still answered after the end of the input, as when a script pipes them in."""


Incoming = anyio.streams.memory.MemoryObjectSendStream[SessionMessage | Exception]

Outgoing = anyio.streams.memory.MemoryObjectReceiveStream[SessionMessage]


@dataclass(frozen=True, slots=True)
class StandardStreams:
    """The client's end of standard input and output."""

    reading: BinaryIO
    writing: BinaryIO


def claim_stdio() -> StandardStreams:
    """Take standard input and output for the protocol; all others read nothing and write to the log."""
    wire = StandardStreams(os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb"))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return wire


class OpenRequests:
    """The requests of the client that have no answer yet."""

    def __init__(self) -> None:
        self._ids: set[str | int] = set()
        self._changed = asyncio.Event()

    def note_incoming(self, message: types.JSONRPCMessage) -> None:
        """Add a request, or drop one that is cancelled. A subscription is open until the stream ends."""
        if isinstance(message, types.JSONRPCRequest) and message.method != "subscriptions/listen":
            self._ids.add(message.id)
        elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            self._drop((message.params or {}).get("requestId"))

    def note_outgoing(self, message: types.JSONRPCMessage) -> None:
        """Drop the request that a message answers."""
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            self._drop(message.id)

    async def all_answered(self) -> None:
        """Wait until no request is open."""
        while self._ids:
            self._changed.clear()
            await self._changed.wait()

    def _drop(self, request_id: Any) -> None:
        if isinstance(request_id, str | int):
            self._ids.discard(request_id)
            self._changed.set()


def read_messages(
    source: BinaryIO,
    incoming: Incoming,
    requests: OpenRequests,
    loop: asyncio.AbstractEventLoop,
    *,
    drain_s: float = DRAIN_S,
) -> None:
    """Read one message per line, in a thread that ends with the process; wait until each is taken.

    After the end of the input the stream stays open until all requests are answered, at most ``drain_s``,
    because its end cancels them.
    """

    async def hand_over(message: SessionMessage | Exception) -> None:
        if isinstance(message, SessionMessage):
            requests.note_incoming(message.message)
        await incoming.send(message)

    async def end() -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(requests.all_answered(), drain_s)
        await incoming.aclose()

    try:
        for line in source:
            if line.strip():
                asyncio.run_coroutine_threadsafe(hand_over(_parse(line)), loop).result()
        asyncio.run_coroutine_threadsafe(end(), loop).result()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, RuntimeError) as error:
        _log.debug("standard input is no longer read", error=repr(error))


def _parse(line: bytes) -> SessionMessage | Exception:
    try:
        message: Any = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError as error:
        return error
    return SessionMessage(message)


async def write_messages(target: BinaryIO, outgoing: Outgoing, requests: OpenRequests) -> None:
    """Write each outgoing message as one line, and note which requests are answered."""
    async with outgoing:
        async for message in outgoing:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            await asyncio.to_thread(_write_line, target, text.encode() + b"\n")
            requests.note_outgoing(message.message)


def _write_line(target: BinaryIO, line: bytes) -> None:
    target.write(line)
    target.flush()
