"""The process of the MCP bridge: connects standard input and output to the hub.

Standard output carries only the protocol; other output goes to standard error.
"""

from __future__ import annotations

import asyncio
import os
import sys

from retinue.core.errors import StateError
from retinue.mcp.stdio.bridge import Bridge, read_lines
from retinue.runtime.commands.hub_start import ensure_hub
from retinue.settings import Settings
from retinue.storage.files import write_all
from retinue.storage.state import State, find_hub_url
from retinue.web.http_client import HttpClient


async def run_bridge(settings: Settings, state: State, path: str) -> int:
    """Relay between the client on standard input and output and the hub, until the client closes its end."""
    output = os.dup(1)
    # other output of this process goes to standard error
    os.dup2(2, 1)
    turn = asyncio.Lock()

    async def write(message: bytes) -> None:
        async with turn:
            await asyncio.to_thread(write_all, output, message.replace(b"\n", b" ") + b"\n")

    def find_running() -> str | None:
        try:
            return find_hub_url(state)
        except StateError:
            return None

    async with HttpClient() as http:

        async def find_hub() -> str:
            timeout_s = settings.timeouts.probe_s
            return await ensure_hub(state, http, probe_timeout_s=timeout_s, logs=settings.logs)

        bridge = Bridge(http, write, find_hub, find_running, token=state.local_token(), path=path)
        await bridge.run(read_lines(sys.stdin.fileno()))
    return 0
