"""A model agent that reads a file with its skill, writes half of its answer, and waits before the rest."""

from __future__ import annotations

import asyncio
from typing import Any

from retinue import Agent, Context

HALF, WHOLE = "Half of ", "Half of it is all."


def make_writer(go_on: asyncio.Event) -> Agent:
    writer = Agent("writer", version="1.0.0", scores={"execution": 0.9}, labels={"kind": "model"})

    @writer.skill(roles=["execute"])
    async def execute(prompt: str) -> str:
        """Does a task."""
        return "done"

    @writer.skill
    async def read(path: str) -> str:
        """Reads a file."""
        return f"a line of {path}\n" * 100

    @writer.skill
    async def complete(
        system: str,
        messages: list[Any],
        ctx: Context,
        tools: Any = None,
        tool_choice: str = "auto",
        output_schema: Any = None,
        max_tokens: int | None = None,
    ) -> dict[str, Any]:
        """Replies to a conversation."""
        reply = {"model": "m", "provider": "p"}
        if len(messages) == 1:
            calls = [("writer__read", {"path": "notes.md"}), ("writer__list", {})]
            wanted = [{"id": f"c{n}", "name": name, "arguments": one} for n, (name, one) in enumerate(calls)]
            return {**reply, "text": "I read it first.", "calls": wanted, "finish": "calls"}
        await ctx.stream_text(HALF)
        await go_on.wait()
        return {**reply, "text": WHOLE, "calls": [], "finish": "stop"}

    return writer
