"""Runs a hub, an agent or a worker in the test's own process, with the function that its command calls."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
import uvicorn
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp

from retinue.parts.process import Echo
from retinue.rest.routes import RestRoutes
from retinue.runtime.serving import Stop

WAIT_S = 60.0

Main = Callable[[Echo], Coroutine[Any, Any, int]]
"""The main coroutine of a process, given the function that prints its lines."""


@dataclass(slots=True)
class LiveProcess:
    """A process that has reported to be ready; ``url`` is empty where the report has none."""

    task: asyncio.Task[int]
    stop: Stop
    url: str
    app: ASGIApp | None
    lines: list[str]

    def list_routes(self) -> list[str]:
        """Methods and path of each route behind the middleware, in their order."""
        app: Any = self.app
        while not isinstance(app, Router):
            app = app._app
        return [_describe(route) for route in _flatten(app.routes)]


def _flatten(routes: Sequence[BaseRoute]) -> list[BaseRoute]:
    """The routes, with the ones that are joined into one."""
    plain: list[BaseRoute] = []
    for route in routes:
        plain += _flatten(route.routes) if isinstance(route, RestRoutes) else [route]
    return plain


def _describe(route: BaseRoute) -> str:
    assert isinstance(route, Route), f"it is unknown what {route!r} serves"
    methods = " ".join(sorted(route.methods)) if route.methods else "any method"
    return f"{route.path}  {methods}"


class ProcessStarter:
    """Starts processes in this one; the test stands in for their signals and their supervisor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._stop: Stop | None = None
        self._app: Any = None
        self._line: socket.socket | None = None
        startup = uvicorn.Server.startup

        def on_signals(stop: Stop) -> None:
            self._stop = stop

        def with_supervisor(stop: Stop) -> int | None:
            return None if self._line is None else self._line.fileno()

        async def keep_app(server: uvicorn.Server, *arguments: Any, **options: Any) -> None:
            self._app = server.config.app
            await startup(server, *arguments, **options)

        monkeypatch.setattr(Stop, "on_signals", on_signals)
        monkeypatch.setattr(Stop, "with_supervisor", with_supervisor)
        monkeypatch.setattr(uvicorn.Server, "startup", keep_app)

    def ask_to_stop(self) -> None:
        """Stop the process that was started last, also before it is ready."""
        assert self._stop is not None
        self._stop.ask("the test is over")

    @asynccontextmanager
    async def running(
        self, main: Main, *, on_line: Callable[[str], None] = lambda line: None
    ) -> AsyncIterator[LiveProcess]:
        """A process that is ready; on leaving it is asked to stop, and has ended with exit code 0."""
        lines: list[str] = []

        def echo(line: str) -> None:
            lines.append(line)
            on_line(line)

        ours, self._line = socket.socketpair()
        ours.setblocking(False)
        self._stop, self._app = None, None
        with ours, self._line:
            task = asyncio.create_task(main(echo))
            facts = await _read_report(ours, task)
            assert self._stop is not None
            process = LiveProcess(task, self._stop, facts.get("url", ""), self._app, lines)
            try:
                yield process
            finally:
                process.stop.ask("the test is over")
                async with asyncio.timeout(WAIT_S):
                    code = await task
            assert code == 0


async def _read_report(line: socket.socket, main: asyncio.Task[int]) -> Any:
    """What the process reports when it is ready."""
    reading = asyncio.create_task(asyncio.get_running_loop().sock_recv(line, 4096))
    await asyncio.wait({reading, main}, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
    if not reading.done():
        reading.cancel()
        if main.done():
            main.result()
        raise AssertionError("the process is not ready")
    return orjson.loads(await reading)
