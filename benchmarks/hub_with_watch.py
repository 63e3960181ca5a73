"""``python -m benchmarks.hub_with_watch hub …``: the command line with a hub that watches its event loop.

`PATH` answers with the longest time that other tasks had to wait since the last request: seconds of processor
time of the hub, so that other programs disturb it little.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retinue.parts.part import Opened, Part
from retinue.parts.process import Process

if TYPE_CHECKING:
    from retinue.runtime.hub_process import HubOptions
    from retinue.settings import Settings

PATH = "/longest-block"


class WatchPart(Part):
    """Measures the blocks of the event loop; it is a busy loop, and takes a whole processor."""

    name = "watch"
    kinds = frozenset({"hub"})
    rank = 0

    def __init__(self) -> None:
        self._longest_s = 0.0

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        yield Opened(routes=[Route(PATH, self._answer)], running=self._running)

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _watch(self) -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            self._longest_s = max(self._longest_s, time.thread_time() - began)

    async def _answer(self, request: Request) -> Response:
        longest_s, self._longest_s = self._longest_s, 0.0
        return JSONResponse(longest_s)


def main() -> None:
    from retinue.cli.program import main as run
    from retinue.runtime import hub_process

    list_parts = hub_process.hub_parts

    def with_watch(options: HubOptions, settings: Settings) -> Sequence[Part]:
        return [*list_parts(options, settings), WatchPart()]

    hub_process.hub_parts = with_watch
    run()


if __name__ == "__main__":
    main()
