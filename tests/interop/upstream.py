"""The everything server as a process of a test, with a card in the registry of the test's system."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from retinue.cards.pallet_card import encode_card, render_card
from retinue.core.record import AgentRecord, Endpoint, Skill
from tests.interop.everything import TOOLS
from tests.system import WAIT_S, System, publish

ROOT = Path(__file__).resolve().parent.parent.parent
NAME = "everything"


class Everything:
    """The server that runs, and what it has seen."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    def record(self, name: str = NAME) -> AgentRecord:
        """Its card: every tool exposed, but for ``count``, which is the mesh's own."""
        skills = tuple(
            Skill(tool, f"The tool {tool}", visibility="mesh" if tool == "count" else "exposed")
            for tool in TOOLS
        )
        return AgentRecord(name, "1.0.0", endpoints=(Endpoint("execute", self.url),), skills=skills)

    async def publish(self, system: System, name: str = NAME, **changes: Any) -> None:
        record = replace(self.record(name), **changes)
        await publish(system.home, encode_card(render_card(record, scopes=frozenset({"exposed", "mesh"}))))

    async def seen(self) -> Any:
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/seen") as reply:
            return orjson.loads(await reply.read())

    async def forget(self) -> None:
        """Begin a new list of what was seen."""
        async with aiohttp.ClientSession() as session, session.delete(f"{self.url}/seen") as reply:
            assert reply.status == 200

    async def messages(self, method: str) -> list[Any]:
        """Every message of this method that came."""
        return [m for m in (await self.seen())["messages"] if m["method"] == method]

    async def wait_for(self, what: str, *, method: bool = True) -> Any:
        """Wait until a message of this method came, else until a call of this name was cancelled."""
        async with asyncio.timeout(WAIT_S):
            while True:
                seen = await self.seen()
                if method and (found := [m for m in seen["messages"] if m["method"] == what]):
                    return found[0]
                if not method and what in seen["cancelled"]:
                    return what
                await asyncio.sleep(0.02)


@contextmanager
def run_everything() -> Iterator[Everything]:
    """The server in a process of its own, on a port of its own."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.interop.everything"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url, "the everything server did not start"
        yield Everything(process, url)
    finally:
        process.kill()
        process.communicate()
