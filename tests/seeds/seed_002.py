"""The doubles of seed 002: agents ``claude`` and ``gemini`` with its numbers, and what they were asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from mcp_types import CallToolResult

from retinue.authoring.agent import Agent
from tests.mcp.clients import connect, texts
from tests.system import Hub, System, Wire

SEED = (Path(__file__).parent / "002" / "tools.json").read_bytes()
TOOLS: dict[str, Any] = orjson.loads(SEED)["tools"]
REPLIES: dict[str, Any] = orjson.loads(SEED)["replies"]
NAMES = (*TOOLS, "execute_code", "execute_task")

SCORES = {
    "claude": {"planning": 0.95, "execution": 0.85, "review": 0.90},
    "gemini": {"planning": 0.85, "execution": 0.95, "review": 0.80},
}
WINDOWS = {"claude": 200_000, "gemini": 1_000_000}

Answer = Callable[[str, str], Any]


def echo(role: str, prompt: str) -> str:
    return f"{role} done"


@dataclass
class Models:
    """Scripted models behind a hub, asked by the official client."""

    system: System
    wire: Wire
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """Agent, role and prompt of each call, in order."""
    hub: Hub | None = None
    running: int = 0
    most_running: int = 0
    hung: asyncio.Event = field(default_factory=asyncio.Event)
    cut_off: asyncio.Event = field(default_factory=asyncio.Event)

    async def join(
        self, name: str, answer: Answer = echo, *, languages: tuple[str, ...] = (), **options: Any
    ) -> None:
        """A model agent with all roles; ``answer`` may raise, or be awaited."""
        await self.system.start_agent(self.make(name, answer, languages=languages, **options))

    async def join_both(self) -> None:
        await self.join("claude")
        await self.join("gemini", languages=("Python",))
        await self.open()

    def make(
        self,
        name: str,
        answer: Answer = echo,
        *,
        languages: tuple[str, ...] = (),
        roles: tuple[str, ...] = ("plan", "execute", "review"),
        scores: dict[str, float] | None = None,
        version: str = "1.0.0",
        labels: dict[str, str] | None = None,
    ) -> Agent:
        agent = Agent(
            name,
            version=version,
            scores=scores or SCORES.get(name, {"planning": 0.5, "execution": 0.5, "review": 0.5}),
            context_window=WINDOWS.get(name),
            languages=languages,
            labels=labels or {},
        )
        for role in roles:
            agent.skill(role, roles=[role], expose=True)(self._skill(name, role, answer))
        return agent

    def _skill(self, name: str, role: str, answer: Answer) -> Any:
        async def ask(prompt: str) -> str:
            """Answers a prompt."""
            self.asked.append((name, role, prompt))
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            try:
                given = answer(role, prompt)
                return str(await given if asyncio.iscoroutine(given) else given)
            finally:
                self.running -= 1

        return ask

    async def hang(self) -> str:
        """An answer that never comes."""
        self.hung.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cut_off.set()
            raise
        return "never"

    async def open(self) -> Hub:
        """Start the hub, which sees that the agents answer."""
        if self.hub is None:
            self.hub = await self.system.start_hub()
            await self.see_all()
        return self.hub

    async def see_all(self) -> None:
        assert self.hub is not None
        directory = self.hub.mesh.directory
        await directory.refresh()
        for entry in directory.list_entries():
            directory.mark_reachable(entry)

    async def call(self, tool: str, arguments: dict[str, Any], **options: Any) -> CallToolResult:
        """One tool call of the official client, without a token."""
        hub = await self.open()
        async with connect(f"{hub.url}/mcp") as client:
            return await client.call_tool(tool, arguments, **options)

    async def get(self, tool: str, arguments: dict[str, Any] | None = None) -> Any:
        """The structured result; its text is the same value."""
        result = await self.call(tool, arguments or {})
        assert not result.is_error, texts(result)
        assert orjson.loads(texts(result)[0]) == result.structured_content
        return result.structured_content

    async def refuse(self, tool: str, arguments: dict[str, Any]) -> str:
        """The text of a failed call."""
        result = await self.call(tool, arguments)
        assert result.is_error
        return texts(result)[0]

    @property
    def order(self) -> list[str]:
        """``agent.role`` of each call."""
        return [f"{agent}.{role}" for agent, role, _ in self.asked]
