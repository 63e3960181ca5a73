"""An agent as an MCP server on standard input and output: nothing but protocol passes there.

The descriptors are taken before the agent's file is imported, so that what it prints goes to standard
error, and what reads standard input finds its end. The SDK's own transport was not used: it reads in a
thread that cannot be left, and a signal would wait for the client's next line.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, BinaryIO

import anyio
import anyio.streams.memory
import mcp_types as types
import structlog
from mcp.shared.message import SessionMessage

from retinue.apps.agent import Say, agent_dispatcher, agent_mcp
from retinue.apps.exposure import watch_lists
from retinue.apps.joined import JoinedMesh
from retinue.apps.parts import named_registries, registry_sources
from retinue.apps.serving import Stop, end_task
from retinue.apps.targets import Target
from retinue.drivers.http import HttpClient
from retinue.drivers.layout import LayoutRegistry
from retinue.drivers.state import State
from retinue.settings import Settings
from retinue.surfaces.mcp.door import McpDoor

_log = structlog.get_logger("retinue.stdio")

Incoming = anyio.streams.memory.MemoryObjectSendStream[SessionMessage | Exception]
Outgoing = anyio.streams.memory.MemoryObjectReceiveStream[SessionMessage]


@dataclass(frozen=True, slots=True)
class Wire:
    """The client's end of standard input and output."""

    reading: BinaryIO
    writing: BinaryIO


def claim_stdio() -> Wire:
    """Take standard input and output for the protocol; all others read nothing and write to the log."""
    wire = Wire(os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb"))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return wire


async def serve_on_stdio(
    target: Target, wire: Wire, settings: Settings, state: State, hub_url: str | None, say: Say
) -> int:
    """Serve until the client closes its end or somebody asks to stop; returns the exit code."""
    agent = target.agent
    state.prepare()
    stop = Stop()
    stop.on_signals()
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(HttpClient(allow_private=settings.allow_private_urls))
        registries = named_registries(settings, LayoutRegistry(state.registry), http, state)
        sources = registry_sources(settings, registries)
        mesh = await stack.enter_async_context(JoinedMesh.open(settings, state, http, sources, hub_url))
        dispatcher = agent_dispatcher(agent, settings, mesh, None, target.access)
        door = agent_mcp(agent, dispatcher, mesh, settings)
        await stack.enter_async_context(door.running())
        await stack.enter_async_context(watch_lists(target, say))
        serving = asyncio.create_task(_serve(door, wire))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        await end_task(stopping)
        if serving.done():
            serving.result()
        else:
            await end_task(serving)
    return 0


async def _serve(door: McpDoor, wire: Wire) -> None:
    """One client from its first line to the end of its input."""
    incoming, reading = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    writing, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    loop = asyncio.get_running_loop()
    reader = threading.Thread(target=_read, args=(wire.reading, incoming, loop), name="stdin", daemon=True)
    reader.start()
    async with asyncio.TaskGroup() as group:
        group.create_task(_write(wire.writing, outgoing))
        await door.serve_streams(reading, writing)
        await writing.aclose()


def _read(source: BinaryIO, incoming: Incoming, loop: asyncio.AbstractEventLoop) -> None:
    """One message a line, in a thread that ends with the process; each waits until it is taken."""

    def hand_over(message: SessionMessage | Exception) -> None:
        asyncio.run_coroutine_threadsafe(incoming.send(message), loop).result()

    try:
        for line in source:
            if line.strip():
                hand_over(_parse(line))
        asyncio.run_coroutine_threadsafe(incoming.aclose(), loop).result()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, RuntimeError) as error:
        _log.debug("nobody reads standard input any longer", error=repr(error))


def _parse(line: bytes) -> SessionMessage | Exception:
    try:
        message: Any = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError as error:
        return error
    return SessionMessage(message)


async def _write(target: BinaryIO, outgoing: Outgoing) -> None:
    async with outgoing:
        async for one in outgoing:
            text = one.message.model_dump_json(by_alias=True, exclude_unset=True)
            await asyncio.to_thread(_write_line, target, text.encode() + b"\n")


def _write_line(target: BinaryIO, line: bytes) -> None:
    target.write(line)
    target.flush()
