"""Which call a question of a server belongs to, when the question itself does not say so."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from retinue.core.errors import InputRequiredError
from retinue.mcp.upstream.open_calls import OpenCalls
from retinue.mesh.channel import NullChannel

QUESTION = {"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": {"message": "Who?"}}


class Calls:
    """Calls in flight that a test begins and ends, each with a channel of its own."""

    def __init__(self, *, hold_s: float = 5.0) -> None:
        self.open = OpenCalls("foreign", hold_s=hold_s)
        self.channels: dict[int, NullChannel] = {}
        self._stacks: dict[int, AsyncExitStack] = {}

    async def begin(self, number: int, tool: str = "book") -> None:
        self.channels[number] = NullChannel()
        self._stacks[number] = AsyncExitStack()
        await self._stacks[number].enter_async_context(self.open.running(number, tool, self.channels[number]))

    async def end(self, number: int) -> None:
        await self._stacks[number].aclose()


async def turns(count: int = 5) -> None:
    """Let other tasks run until they wait."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_question_belongs_to_the_only_call() -> None:
    calls = Calls()
    await calls.begin(1)
    assert (await calls.open.find_asker(QUESTION)).channel is calls.channels[1]


async def test_a_question_that_names_a_progress_token_belongs_to_that_call() -> None:
    calls = Calls()
    await calls.begin(1)
    await calls.begin(2)
    named: dict[str, Any] = {**QUESTION, "params": {"_meta": {"progressToken": 1}}}
    assert (await calls.open.find_asker(named)).channel is calls.channels[1]


async def test_a_question_waits_until_one_call_is_left_and_no_call_begins_meanwhile() -> None:
    calls = Calls()
    await calls.begin(1)
    await calls.begin(2)
    asked = asyncio.create_task(calls.open.find_asker(QUESTION))
    await turns()
    third = asyncio.create_task(calls.begin(3, "other"))
    await turns()
    assert not asked.done()
    assert not third.done()
    await calls.end(2)
    assert (await asked).channel is calls.channels[1]
    await third
    assert calls.open.find_only() is None


async def test_a_call_whose_caller_is_being_asked_asks_nothing_else() -> None:
    calls = Calls()
    await calls.begin(1)
    first = await calls.open.find_asker(QUESTION)
    with first.asking():
        await calls.begin(2, "other")
        assert (await calls.open.find_asker(QUESTION)).channel is calls.channels[2]


async def test_of_two_questions_for_two_calls_the_last_is_refused_and_the_other_finds_its_call() -> None:
    calls = Calls()
    await calls.begin(1)
    await calls.begin(2)
    first = asyncio.create_task(calls.open.find_asker(QUESTION))
    await turns()
    with pytest.raises(InputRequiredError, match="which of its 2 calls in flight") as refused:
        await calls.open.find_asker(QUESTION)
    assert "one after the other" in refused.value.remedy
    await calls.end(1)  # its question was refused
    assert (await first).channel is calls.channels[2]


async def test_calls_of_a_tool_that_asked_run_one_after_the_other() -> None:
    calls = Calls()
    await calls.begin(1)
    await calls.open.find_asker(QUESTION)
    await calls.end(1)
    await calls.begin(2)
    next_one = asyncio.create_task(calls.begin(3))
    await calls.begin(4, "other")
    await turns()
    assert not next_one.done()
    await calls.end(2)
    await next_one


async def test_a_question_that_stays_unclear_is_refused() -> None:
    calls = Calls(hold_s=0.01)
    with pytest.raises(InputRequiredError, match="while no call is in flight"):
        await calls.open.find_asker(QUESTION)
    await calls.begin(1)
    await calls.begin(2)
    with pytest.raises(InputRequiredError, match="which of its 2 calls"):
        await calls.open.find_asker(QUESTION)
    await calls.begin(3)  # nothing is held any more
