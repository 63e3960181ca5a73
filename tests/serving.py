"""An app on a real socket, for tests: ``async with serve_app(app) as url``."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvicorn

STOP_WITHIN_S = 2.0
"""How long calls in flight may take to end before they are cancelled."""


@asynccontextmanager
async def serve_app(app: Any, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve an ASGI app (lifespan included) until the block ends; gives its base url without a slash.

    The server runs in the test's own loop. Its steps are called one by one instead of ``serve()``,
    which would take over the signal handlers of pytest and answer a stop only at its next tick.
    A synchronous client must be run by ``asyncio.to_thread``.
    """
    # With the protocol left at 0, as ``socket.create_server`` does, asyncio would not set TCP_NODELAY,
    # and every answer of two segments would wait 40 ms for an acknowledgement.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    config = uvicorn.Config(app, log_config=None, access_log=False)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    try:
        await server.startup(sockets=[listener])
    except SystemExit:
        listener.close()
        raise RuntimeError("the app under test did not start: its lifespan failed") from None
    try:
        await server.on_tick(0)
        yield f"http://{host}:{listener.getsockname()[1]}"
    finally:
        await _stop(server)
        listener.close()


async def _stop(server: uvicorn.Server) -> None:
    """What ``Server.shutdown`` does, less the tenth of a second that it sleeps whatever there is to end."""
    for listening in server.servers:
        listening.close()
    state = server.server_state
    for connection in list(state.connections):
        connection.shutdown()
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_WITHIN_S):
            while state.connections or state.tasks:
                await asyncio.sleep(0.001)
    for task in state.tasks:
        task.cancel()
    await server.lifespan.shutdown()
