"""Serves an agent over MCP on standard input and output, which carry only the protocol.

The descriptors are claimed before the agent's file is imported: what the file prints goes to standard error,
and its reads of standard input return end of file. The transport of the MCP SDK is not used, because it reads
in a thread that cannot be cancelled; a signal would wait for the client's next line.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack

import anyio
import anyio.streams.memory
from mcp.shared.message import SessionMessage

from retinue.mcp.server.endpoint import McpServer
from retinue.mcp.stdio.server_wire import OpenRequests, StandardStreams, read_messages, write_messages
from retinue.parts.opening import open_parts
from retinue.parts.part import Part
from retinue.parts.process import Echo
from retinue.runtime.agent_core import attach_model, open_agent
from retinue.runtime.commands.own_runs import list_markdown_parts
from retinue.runtime.endpoints.agent_mcp import McpEndpoints
from retinue.runtime.launch import Start
from retinue.runtime.loading.targets import Target
from retinue.runtime.parts.agent_publication import ListWatchPart
from retinue.runtime.parts.mcp import AgentMcpPart
from retinue.runtime.parts.policies import PoliciesPart
from retinue.runtime.serving import Stop, end_task
from retinue.settings import Settings
from retinue.storage.state import State


async def serve_on_stdio(
    target: Target,
    wire: StandardStreams,
    settings: Settings,
    state: State,
    hub_url: str | None,
    echo: Echo,
) -> int:
    """Serve until the client closes its end or a signal arrives; returns the exit code."""
    state.prepare()
    attach_model(target, settings, state, echo)
    stop = Stop()
    stop.on_signals()
    async with AsyncExitStack() as stack:
        opening = open_agent("stdio", target, hub_url, Start(settings, state, echo, stop))
        process = await stack.enter_async_context(opening)
        parts = await stack.enter_async_context(open_parts(process, stdio_parts(target)))
        server = await process.get(McpEndpoints).own.open()
        await stack.enter_async_context(parts.running())
        serving = asyncio.create_task(_serve(server, wire))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        await end_task(stopping)
        if serving.done():
            serving.result()
        else:
            await end_task(serving)
    return 0


def stdio_parts(target: Target) -> Sequence[Part]:
    """The parts of an agent on standard input and output."""
    return [PoliciesPart(), AgentMcpPart(), *list_markdown_parts(target), ListWatchPart(target)]


async def _serve(server: McpServer, wire: StandardStreams) -> None:
    """Serve one client until the end of its input."""
    incoming, reading = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    writing, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    requests, loop = OpenRequests(), asyncio.get_running_loop()
    reader = threading.Thread(
        target=read_messages, args=(wire.reading, incoming, requests, loop), name="stdin", daemon=True
    )
    reader.start()
    async with asyncio.TaskGroup() as group:
        group.create_task(write_messages(wire.writing, outgoing, requests))
        await server.serve_streams(reading, writing)
        await writing.aclose()
