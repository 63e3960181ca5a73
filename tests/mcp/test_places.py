"""What a call over MCP can do, the same wherever a client reaches the agent and in both families of versions.

Each test runs at the agent's own endpoint, at the hub's, and at the relay of the hub.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolResult,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    ListRootsResult,
    LoggingMessageNotificationParams,
    Root,
    TextContent,
)
from pydantic import FileUrl

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.errors import CannotAskError, InputRefusedError
from tests.mcp.clients import MODES, connect, texts
from tests.requirements import requirement
from tests.system import WAIT_S, System

pytestmark = pytest.mark.parametrize("mode", MODES)

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class Worker:
    """An agent whose skills use all that a call has, and what became of the one that hangs."""

    def __init__(self) -> None:
        self.agent = agent = Agent("worker", version="1.0.0", logging=True)
        self.cancelled = asyncio.Event()

        @agent.skill(expose=True)
        async def count(words: list[str]) -> dict[str, int]:
            return {word: len(word) for word in words}

        @agent.skill(expose=True)
        async def numbers() -> list[int]:
            return [1, 2]

        @agent.skill(expose=True)
        async def fail() -> str:
            raise ValueError("no luck")

        @agent.skill
        async def for_the_mesh() -> str:
            return "mesh"

        @agent.skill(private=True)
        async def hidden() -> str:
            return "hidden"

        @agent.skill(expose=True)
        async def work(ctx: Context) -> str:
            await ctx.progress(0.25, "a quarter")
            await ctx.log("first", level="debug")
            await ctx.log("second", data={"n": 2})
            await ctx.log("third", level="error")
            await ctx.progress(None)
            await ctx.progress(0.5)
            return "done"

        @agent.skill(expose=True)
        async def greet(ctx: Context) -> str:
            try:
                name = (await ctx.elicit("Who are you?", NAME))["name"]
                age = await ctx.elicit("How old are you?", {"type": "integer"})
            except CannotAskError as error:
                return f"cannot ask: {error.capability}"
            except InputRefusedError as error:
                return f"refused: {error.message}"
            return f"Hello, {name}, {age}!"

        @agent.skill(expose=True)
        async def several(ctx: Context) -> str:
            name, said, roots = await asyncio.gather(
                ctx.elicit("Who are you?", NAME), ctx.sample("Say hello", max_tokens=10), ctx.roots()
            )
            return f"{said} {name['name']} of {roots[0].uri}"

        @agent.skill(expose=True, timeout_s=1.0)
        async def patient(ctx: Context) -> str:
            await ctx.elicit("Take your time", NAME)
            return "thank you"

        @agent.skill(expose=True, timeout_s=1.0)
        async def overdue() -> None:
            await asyncio.Event().wait()

        @agent.skill(expose=True)
        async def hang(ctx: Context) -> None:
            await ctx.progress(0.0, "begun")
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()


@dataclass(frozen=True, slots=True)
class Place:
    """Where clients reach the worker, and the names of its tools there."""

    worker: Worker
    url: str
    prefix: str = ""

    def connect(self, mode: str, **options: Any) -> AbstractAsyncContextManager[Client]:
        return connect(self.url, mode, **options)

    async def call(self, client: Client, skill: str, arguments: Any = None, **more: Any) -> CallToolResult:
        return await client.call_tool(self.prefix + skill, arguments, **more)


@pytest.fixture(params=["agent", "hub", "relay"])
async def place(request: pytest.FixtureRequest, system: System) -> AsyncIterator[Place]:
    worker = Worker()
    served = await system.start_agent(worker.agent)
    if request.param == "agent":
        yield Place(worker, f"{served.url}/mcp")
        return
    hub = await system.start_hub()
    if request.param == "hub":
        yield Place(worker, f"{hub.url}/mcp", "worker__")
    else:
        yield Place(worker, f"{hub.url}/agents/worker/mcp")


async def say_ada(context: Any, params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada", "answer": 36})


async def decline(context: Any, params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="decline")


async def say_hello(context: Any, params: Any) -> CreateMessageResult:
    said = TextContent(text=f"[{params.messages[0].content.text}]")
    return CreateMessageResult(role="assistant", content=said, model="test")


async def say_roots(context: Any) -> ListRootsResult:
    return ListRootsResult(roots=[Root(uri=FileUrl("file:///work"))])


async def test_results_are_text_and_data(place: Place, mode: str) -> None:
    async with place.connect(mode) as client:
        counted = await place.call(client, "count", {"words": ["one", "three"]})
        assert counted.structured_content == {"one": 3, "three": 5}
        assert texts(counted) == ['{\n  "one": 3,\n  "three": 5\n}']
        assert (await place.call(client, "numbers")).structured_content == {"result": [1, 2]}


async def test_a_failure_is_a_result_that_a_model_can_read(place: Place, mode: str) -> None:
    async with place.connect(mode) as client:
        failed = await place.call(client, "fail")
        assert failed.is_error
        assert texts(failed) == ["Execution failed: ValueError: no luck (skill fail)"]
        wrong = await place.call(client, "count", {"words": "one"})
        assert wrong.is_error
        assert texts(wrong)[0].startswith("Invalid parameters: ")


@requirement("P-23")
async def test_a_misspelt_argument_is_named_with_the_right_one_in_the_text(place: Place, mode: str) -> None:
    """A model reads nothing else; what a model cannot read of the facts is in ``_meta`` as well."""
    async with place.connect(mode) as client:
        wrong = await place.call(client, "count", {"word": ["one"]})
        assert wrong.is_error
        text = "missing required field 'words'; unknown field 'word' — did you mean 'words'?"
        assert texts(wrong) == [f"Invalid parameters: {text}"]
        assert wrong.meta is not None
        assert wrong.meta["retinue/error"]["errors"][1] == {
            "path": "word",
            "message": "unknown field 'word'",
            "hint": "did you mean 'words'?",
        }


@requirement("S-06")
async def test_hidden_and_missing_tools_are_refused_alike(place: Place, mode: str) -> None:
    async with place.connect(mode) as client:
        for name in ("hidden", "for_the_mesh", "nope", "", "worker__nope"):
            with pytest.raises(MCPError) as refused:
                await place.call(client, name)
            message = f"Unknown tool: {place.prefix}{name}"
            assert (refused.value.code, refused.value.message) == (-32602, message)
            assert refused.value.error.data is None


async def test_progress_only_grows_and_log_lines_have_their_levels(place: Place, mode: str) -> None:
    steps: list[tuple[float, float | None, str | None]] = []
    lines: list[tuple[str, Any]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        steps.append((round(progress, 3), total, message))

    async def log(params: LoggingMessageNotificationParams) -> None:
        lines.append((params.level, params.data))

    async with place.connect(mode, logging_callback=log, log_level="info") as client:
        assert texts(await place.call(client, "work", progress_callback=note)) == ["done"]
        assert texts(await place.call(client, "work")) == ["done"]
    assert steps == [(0.25, 1.0, "a quarter"), (0.25, 1.0, None), (0.5, 1.0, None)]
    assert lines == [("info", {"message": "second", "n": 2}), ("error", "third")] * 2


async def test_a_person_is_asked_and_answers(place: Place, mode: str) -> None:
    async with place.connect(mode, elicitation_callback=say_ada) as client:
        assert texts(await place.call(client, "greet")) == ["Hello, Ada, 36!"]


async def test_a_person_may_decline(place: Place, mode: str) -> None:
    async with place.connect(mode, elicitation_callback=decline) as client:
        refused = "refused: the question was answered with decline: Who are you?"
        assert texts(await place.call(client, "greet")) == [refused]


async def test_a_client_that_cannot_be_asked_is_not_asked(place: Place, mode: str) -> None:
    async with place.connect(mode, sampling_callback=say_hello) as client:
        assert texts(await place.call(client, "greet")) == ["cannot ask: elicitation"]


async def test_person_model_and_roots_are_asked_at_once(place: Place, mode: str) -> None:
    async with place.connect(
        mode,
        elicitation_callback=say_ada,
        sampling_callback=say_hello,
        list_roots_callback=say_roots,
    ) as client:
        assert texts(await place.call(client, "several")) == ["[Say hello] Ada of file:///work"]


async def test_the_clock_of_a_skill_stands_still_while_it_asks(place: Place, mode: str) -> None:
    async def think(context: Any, params: ElicitRequestParams) -> ElicitResult:
        """Answers when the time limit of a later call with the same one is over."""
        async with place.connect(mode) as other:
            assert (await place.call(other, "overdue")).is_error
        return ElicitResult(action="accept", content={"name": "Ada"})

    async with place.connect(mode, elicitation_callback=think) as client:
        assert texts(await place.call(client, "patient")) == ["thank you"]


async def test_a_client_that_cancels_cancels_the_skill(place: Place, mode: str) -> None:
    begun = asyncio.Event()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        begun.set()

    async with asyncio.timeout(WAIT_S), place.connect(mode) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: place.call(client, "hang", progress_callback=note))
            await begun.wait()
            tasks.cancel_scope.cancel()
        await place.worker.cancelled.wait()
        assert (await place.call(client, "numbers")).structured_content == {"result": [1, 2]}
