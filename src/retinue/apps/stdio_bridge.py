"""The bridge's own process: its standard input and output, which carry the protocol and nothing else."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator

from retinue.apps.bridge import Bridge
from retinue.apps.hub_start import ensure_hub
from retinue.core.errors import StateError
from retinue.drivers.http import HttpClient
from retinue.drivers.state import State, find_hub_url
from retinue.settings import Settings

_WAITING_LINES = 1000


async def run_bridge(settings: Settings, state: State, path: str) -> int:
    """Serve the client at the other end of standard input and output until it closes its end."""
    output = os.dup(1)
    # whatever else prints, prints where logs go
    os.dup2(2, 1)
    turn = asyncio.Lock()

    async def write(message: bytes) -> None:
        async with turn:
            await asyncio.to_thread(_write_all, output, message.replace(b"\n", b" ") + b"\n")

    def find_running() -> str | None:
        try:
            return find_hub_url(state)
        except StateError:
            return None

    async with HttpClient() as http:

        async def find_hub() -> str:
            return await ensure_hub(state, http, probe_timeout_s=settings.timeouts.probe_s)

        bridge = Bridge(http, write, find_hub, find_running, token=state.local_token(), path=path)
        await bridge.run(_lines(sys.stdin.fileno()))
    return 0


async def _lines(descriptor: int) -> AsyncIterator[bytes]:
    """The lines of a descriptor of any kind, read by a thread that waits where nobody takes them."""
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


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
