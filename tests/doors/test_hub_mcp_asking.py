"""Tools of agents at the hub's own ``/mcp``: what they tell while they run, and what they ask."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import mcp_types as types
import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import Part
from retinue.core.errors import CannotAskError
from tests.doors.mcp_clients import open_client, text_of
from tests.system import WAIT_S, System

pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")

both_eras = pytest.mark.parametrize("mode", ["legacy", "auto"])
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class Worker:
    """An agent that works in the open, and what became of its work."""

    def __init__(self) -> None:
        self.agent = agent = Agent("worker", version="1.0.0", logging=True)
        self.cancelled = asyncio.Event()

        @agent.skill(expose=True)
        async def work(ctx: Context) -> dict[str, int]:
            await ctx.progress(0.25, "a quarter")
            await ctx.log("half way", data={"n": 2})
            await ctx.progress(0.75)
            return {"done": 3}

        @agent.skill(expose=True)
        async def ask(ctx: Context) -> str:
            try:
                name = (await ctx.elicit("Who are you?", FORM))["name"]
                age = await ctx.elicit("How old are you?", {"type": "integer"})
                said = await ctx.sample("Say hello", max_tokens=9)
                root = (await ctx.roots())[0].uri
            except CannotAskError as error:
                return f"no {error.capability}"
            return f"{said} {name}, {age}, of {root}"

        @agent.skill(expose=True)
        async def hang(ctx: Context) -> None:
            await ctx.progress(0.0, "begun")
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()

        @agent.skill(expose=True)
        async def numbers() -> list[int]:
            return [1, 2]

        @agent.skill(expose=True)
        async def fail(ctx: Context) -> str:
            raise ValueError("it broke")

        @agent.skill(expose=True)
        async def draw() -> Part:
            return Part("image", "aGk=", "image/png")

        @agent.skill(expose=True)
        async def long() -> str:
            return "x" * 300_000


@pytest.fixture
def worker() -> Worker:
    return Worker()


async def _elicit(context: Any, params: Any) -> types.ElicitResult:
    asked = params.requested_schema["properties"]
    return types.ElicitResult(action="accept", content={"name": "Bo"} if "name" in asked else {"answer": 7})


async def _sample(context: Any, params: Any) -> types.CreateMessageResult:
    said = types.TextContent(type="text", text=f"[{params.messages[0].content.text}]")
    return types.CreateMessageResult(role="assistant", content=said, model="none")


async def _roots(context: Any) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[types.Root(uri="file:///work")])


@both_eras
async def test_progress_and_log_lines_come_through_the_hub(system: System, worker: Worker, mode: str) -> None:
    """Where the client asked for them; the result is the same as without."""
    await system.start_agent(worker.agent)
    hub = await system.start_hub()
    told: list[tuple[float, str | None]] = []
    lines: list[Any] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append((round(progress, 3), message))

    async def log(params: Any) -> None:
        lines.append(params.data)

    async with open_client(hub.url, mode, logging_callback=log, log_level="info") as client:
        if mode == "legacy":
            await client.set_logging_level("info")
        attended = await client.call_tool("worker__work", progress_callback=note)
        plain = await client.call_tool("worker__work")
    assert told == [(0.25, "a quarter"), (0.75, None)]
    assert {"message": "half way", "n": 2} in lines
    assert attended.structured_content == plain.structured_content == {"done": 3}
    assert text_of(attended) == text_of(plain)


@both_eras
async def test_an_agent_asks_through_the_hub_what_the_client_can_be_asked(
    system: System, worker: Worker, mode: str
) -> None:
    """The person, the model and the folders; a client that declared nothing is not asked."""
    await system.start_agent(worker.agent)
    hub = await system.start_hub()
    callbacks: dict[str, Any] = {
        "elicitation_callback": _elicit,
        "sampling_callback": _sample,
        "list_roots_callback": _roots,
    }
    async with open_client(hub.url, mode, **callbacks) as client:
        assert text_of(await client.call_tool("worker__ask")) == "[Say hello] Bo, 7, of file:///work"
    async with open_client(hub.url, mode, elicitation_callback=_elicit) as client:
        assert text_of(await client.call_tool("worker__ask")) == "no sampling"


@both_eras
async def test_a_client_that_cancels_cancels_the_agents_skill(
    system: System, worker: Worker, mode: str
) -> None:
    """Two hops away."""
    await system.start_agent(worker.agent)
    hub = await system.start_hub()
    begun = asyncio.Event()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        begun.set()

    async with asyncio.timeout(WAIT_S), open_client(hub.url, mode) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.call_tool("worker__hang", progress_callback=note))
            await begun.wait()
            tasks.cancel_scope.cancel()
        await worker.cancelled.wait()


async def test_results_and_failures_are_the_same_by_both_ways(system: System, worker: Worker) -> None:
    """Over ``/execute`` and over the agent's ``/mcp``; parts travel only where they can."""
    await system.start_agent(worker.agent)
    hub = await system.start_hub()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        return None

    async with open_client(hub.url) as client:
        for tool in ("numbers", "fail", "long"):
            attended = await client.call_tool(f"worker__{tool}", progress_callback=note)
            plain = await client.call_tool(f"worker__{tool}")
            assert attended.structured_content == plain.structured_content
            assert attended.is_error == plain.is_error
            assert text_of(attended) == text_of(plain)
        (image,) = (await client.call_tool("worker__draw", progress_callback=note)).content
        assert (image.type, image.data) == ("image", "aGk=")  # type: ignore[union-attr]
