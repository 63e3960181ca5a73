"""A proxy between hub and agents that cuts, delays and black-holes what passes, by the dice of a seed."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from contextlib import suppress

CHUNK_BYTES = 64 * 1024
CUT, DELAYED, SWALLOWED = 0.02, 0.06, 0.01
"""How likely each fate of a chunk is."""

DELAY_S = (0.2, 4.0)


class Proxy:
    """Forwards connections to one port; ``port`` is its own. ``fates`` counts what it did to chunks."""

    def __init__(self, target: int, seed: int) -> None:
        self.fates: Counter[str] = Counter()
        self.is_calm = False
        self.port = 0
        self._target = target
        self._dice = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._listens = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._listens.wait(60), "the proxy does not listen"

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._listens.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.05))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        ways = [
            asyncio.create_task(self._forward(reader, there_writer)),
            asyncio.create_task(self._forward(there_reader, writer)),
        ]
        # the end of one way is the end of both: a request of a client that has gone must not arrive later
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        for end in (writer, there_writer):
            end.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                fate = self._draw()
                self.fates[fate] += 1
                if fate == "cut":
                    return
                if fate == "swallowed":
                    while await reader.read(CHUNK_BYTES):
                        pass
                    return
                if fate == "delayed":
                    await asyncio.sleep(self._dice.uniform(*DELAY_S))
                writer.write(chunk)
                await writer.drain()

    def _draw(self) -> str:
        drawn = self._dice.random()
        if self.is_calm or drawn >= CUT + DELAYED + SWALLOWED:
            return "passed"
        return "cut" if drawn < CUT else "delayed" if drawn < CUT + DELAYED else "swallowed"
