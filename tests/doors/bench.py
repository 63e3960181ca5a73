"""An agent that can do everything wrong, and the three endpoints at which it is met."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from retinue.authoring.agent import Agent
from retinue.storage.state import State
from tests.system import Hub, Served, System, open_system

ENDPOINTS = ("agent", "hub by skill", "hub by agent")

_TEXT = {"type": "string"}
_NESTED = {
    "type": "object",
    "properties": {
        "job": {
            "type": "object",
            "properties": {"files": {"type": "array", "items": {"type": "object", "required": ["size"]}}},
        }
    },
}


class Bench:
    """The agent ``bench-agent``, and what its skills have seen."""

    def __init__(self) -> None:
        self.agent = self._make()
        self.forget()

    def forget(self) -> None:
        """Begin anew, for the next test."""
        self.ran: list[str] = []
        self.waiting = asyncio.Event()
        self.cancelled = asyncio.Event()

    def _make(self) -> Agent:
        agent = Agent("bench-agent", version="1.0.0")

        @agent.skill
        async def create_plan(requirements: str) -> dict[str, str]:
            self.ran.append("create_plan")
            return {"plan": requirements}

        @agent.skill(input_schema=_NESTED)
        async def nested(job: Any = None) -> str:
            self.ran.append("nested")
            return "done"

        @agent.skill(output_schema={"type": "object", "properties": {"plan": _TEXT}, "required": ["plan"]})
        async def break_output() -> Any:
            return {"plan": 3}

        @agent.skill
        async def fail() -> str:
            raise ValueError("the first line\nand a second")

        @agent.skill
        async def fail_silently() -> str:
            raise KeyError

        @agent.skill
        async def leave() -> str:
            sys.exit(3)

        @agent.skill(timeout_s=0.2)
        async def hang() -> str:
            return await self._wait()

        @agent.skill
        async def wait() -> str:
            return await self._wait()

        @agent.skill
        async def unspeakable() -> Any:
            return {"plan": object()}

        @agent.skill
        async def not_finite() -> Any:
            return {"plan": float("nan")}

        @agent.skill(runs_code=True)
        async def run_code(code: str) -> str:
            self.ran.append("run_code")
            return f"ran {code}"

        @agent.skill(private=True)
        async def zz_secret() -> str:
            self.ran.append("zz_secret")
            return "a secret"

        return agent

    async def _wait(self) -> str:
        self.waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return "never"


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The bench agent, the hub before it, and ``base``: the endpoint that this test knocks at."""

    bench: Bench
    system: System
    served: Served
    hub: Hub
    base: str


@asynccontextmanager
async def open_endpoints(state: State, name: str) -> AsyncIterator[Endpoints]:
    bench = Bench()
    async with open_system(state) as system:
        served = await system.start_agent(bench.agent)
        hub = await system.start_hub()
        named = f"{hub.url}/agents/bench-agent"
        bases = {"agent": served.url, "hub by skill": hub.url, "hub by agent": named}
        yield Endpoints(bench, system, served, hub, bases[name])
