"""The standard streams of an agent that serves MCP on them: they carry protocol messages only.

The descriptors are taken before the agent's file is imported, so that its prints go to standard error and
its reads of standard input find the end. The SDK's own transport reads in a thread that cannot be stopped,
so that a signal would wait for the client's next line.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any, BinaryIO

import anyio
import anyio.streams.memory
import mcp_types as types
import structlog
from mcp.shared.message import SessionMessage

_log = structlog.get_logger("retinue.stdio")


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


def read_messages(source: BinaryIO, incoming: Incoming, loop: asyncio.AbstractEventLoop) -> None:
    """Read one message per line, in a thread that ends with the process; wait until each is taken."""

    def hand_over(message: SessionMessage | Exception) -> None:
        asyncio.run_coroutine_threadsafe(incoming.send(message), loop).result()

    try:
        for line in source:
            if line.strip():
                hand_over(_parse(line))
        asyncio.run_coroutine_threadsafe(incoming.aclose(), loop).result()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, RuntimeError) as error:
        _log.debug("standard input is no longer read", error=repr(error))


def _parse(line: bytes) -> SessionMessage | Exception:
    try:
        message: Any = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError as error:
        return error
    return SessionMessage(message)


async def write_messages(target: BinaryIO, outgoing: Outgoing) -> None:
    """Write each outgoing message as one line."""
    async with outgoing:
        async for one in outgoing:
            text = one.message.model_dump_json(by_alias=True, exclude_unset=True)
            await asyncio.to_thread(_write_line, target, text.encode() + b"\n")


def _write_line(target: BinaryIO, line: bytes) -> None:
    target.write(line)
    target.flush()
