"""A question to 500 agents: all at once, against asking one after the other, through the same hub.

The agents are real endpoints in one other process. Each has a judgement of its own that takes `THINK_S`, as
one does that looks at a queue or a model; a second pair of figures is of agents that answer at once, where
only the processor limits. Rounds of both ways alternate, the best of each counts.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from benchmarks.dispatch import Server
from benchmarks.figures import Figure
from retinue.cards.pallet_card import encode_card, render_card
from retinue.cli.session import configure_logs
from retinue.core.record import AgentRecord, Endpoint
from retinue.oci.registry import publish_card
from retinue.storage.state import State
from tests.system import NOON, Hub, System, open_system

AGENTS = 500
ROUNDS = 2
THINK_S = 0.02
SPECIFIC = {"query_type": "specific", "query_parameters": {"capabilities": ["python", "debugging"]}}


def measure() -> list[Figure]:
    configure_logs("warning")
    figures = []
    for name, think_s in (("agents that think for 20 ms", THINK_S), ("agents that answer at once", 0.0)):
        with tempfile.TemporaryDirectory() as folder:
            state = State(Path(folder))
            state.prepare()
            with Server("crowd", folder, str(AGENTS), str(think_s)) as server:
                at_once_s, one_by_one_s = uvloop.run(_measure(state, server.url))
        figures += [
            Figure(f"{name}: {AGENTS} at once", at_once_s * 1000, "ms"),
            Figure(f"{name}: {AGENTS} one by one", one_by_one_s * 1000, "ms"),
        ]
        target = 0.2 if think_s else 1.0
        figures.append(Figure(f"{name}: at once / one by one", at_once_s / one_by_one_s, "x", target))
    return figures


async def _measure(state: State, crowd_url: str) -> tuple[float, float]:
    async with open_system(state) as system, aiohttp.ClientSession() as session:
        names = await _publish(system, crowd_url)
        hub = await system.start_hub()

        async def ask(arguments: dict[str, Any]) -> Any:
            body = {"jsonrpc": "2.0", "method": "query_capabilities", "params": arguments, "id": 1}
            headers = {"authorization": system.token}
            async with session.post(f"{hub.url}/execute", json=body, headers=headers) as reply:
                return (await reply.json())["result"]

        async def at_once() -> None:
            found = await ask({**SPECIFIC, "agent": "*", "timeout_s": 30})
            assert len(found["answers"]) == AGENTS, (len(found["answers"]), found["silent"][:3])

        async def one_by_one() -> None:
            for name in names:
                assert (await ask({**SPECIFIC, "agent": name}))["match_result"] is True

        await _wait_for_all(hub)
        await at_once()  # connections, schemas and look-ups are made
        taken = [(await _time(at_once), await _time(one_by_one)) for _ in range(ROUNDS)]
        return min(one for one, _ in taken), min(other for _, other in taken)


async def _publish(system: System, crowd_url: str) -> list[str]:
    names = [f"agent-{number}" for number in range(AGENTS)]
    for number, name in enumerate(names):
        endpoint = Endpoint("execute", f"{crowd_url}/{number}")
        record = AgentRecord(name, "1.0.0", endpoints=(endpoint,), topics=("python", "debugging"))
        card = encode_card(render_card(record, scopes=frozenset({"mesh", "exposed"})))
        await publish_card(system.home, name, card, version="1.0.0", skills=[], created=NOON, tag="v1")
    return names


async def _wait_for_all(hub: Hub) -> None:
    async with asyncio.timeout(60):
        while len(hub.mesh.directory.list_entries()) < AGENTS:
            await hub.mesh.directory.refresh()


async def _time(work: Callable[[], Awaitable[None]]) -> float:
    started = time.perf_counter()
    await work()
    return time.perf_counter() - started
