"""Calls that wait for an answer between two requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult

from retinue.core.errors import BusyError
from retinue.mcp.server.suspended_calls import (
    MAX_SUSPENDED_OF_A_CALLER,
    PendingQuestions,
    SuspendableCall,
    SuspendedCalls,
)

QUESTION = ElicitRequest(params=ElicitRequestFormParams(message="?", requested_schema={"type": "object"}))
YES = ElicitResult(action="accept", content={})
WAIT_S = 60.0


class Talk:
    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def end(self) -> None:
        self.ended.set()


async def test_a_state_is_good_for_one_use_by_its_owner_about_its_subject() -> None:
    held: SuspendedCalls[Talk] = SuspendedCalls()
    talk = Talk()
    state = held.suspend(talk, "ada", "a call")
    for wrong in ((state, "eve", "a call"), (state, "ada", "another"), (state + "x", "ada", "a call")):
        with pytest.raises(MCPError, match="names no call"):
            held.resume(*wrong)
    assert held.resume(state, "ada", "a call") is talk
    with pytest.raises(MCPError):
        held.resume(state, "ada", "a call")
    assert not talk.ended.is_set()


async def test_what_nobody_answers_ends() -> None:
    held: SuspendedCalls[Talk] = SuspendedCalls(kept_s=0.01)
    talk = Talk()
    state = held.suspend(talk, "ada", "a call")
    async with asyncio.timeout(WAIT_S):
        await talk.ended.wait()
    with pytest.raises(MCPError):
        held.resume(state, "ada", "a call")
    assert len(held) == 0


async def test_a_caller_may_not_leave_any_number_waiting() -> None:
    held: SuspendedCalls[Talk] = SuspendedCalls()
    for _ in range(MAX_SUSPENDED_OF_A_CALLER):
        held.suspend(Talk(), "ada", "a call")
    refused = Talk()
    with pytest.raises(BusyError):
        held.suspend(refused, "ada", "a call")
    assert refused.ended.is_set()
    held.suspend(Talk(), "bob", "a call")
    held.end()
    assert len(held) == 0


async def test_several_questions_of_one_moment_are_asked_together() -> None:
    conversation = SuspendableCall(None)

    async def run() -> dict[str, Any]:
        first, second = await asyncio.gather(conversation.ask("a", QUESTION), conversation.ask("a", QUESTION))
        return {"same": first == second}

    conversation.start(run())
    asked = await conversation.proceed()
    assert isinstance(asked, PendingQuestions)
    assert list(asked.requests) == ["a", "a+"]
    conversation.answer({"a": YES})
    rest = await conversation.proceed()
    assert isinstance(rest, PendingQuestions)
    assert list(rest.requests) == ["a+"]
    conversation.answer({"a+": YES})
    assert await conversation.proceed() == {"same": True}


async def test_what_a_call_fails_with_is_raised_to_whoever_waits() -> None:
    conversation = SuspendableCall(None)

    async def run() -> dict[str, Any]:
        await conversation.ask(None, QUESTION)
        raise MCPError(-32602, "no")

    conversation.start(run())
    await conversation.proceed()
    conversation.answer({"question-1": YES})
    with pytest.raises(MCPError, match="no"):
        await conversation.proceed()


async def test_a_request_that_is_cancelled_takes_its_call_with_it() -> None:
    conversation = SuspendableCall(None)
    ended = asyncio.Event()

    async def run() -> dict[str, Any]:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return {}

    conversation.start(run())
    waiting = asyncio.create_task(conversation.proceed())
    await asyncio.sleep(0)
    waiting.cancel()
    async with asyncio.timeout(WAIT_S):
        await ended.wait()
    assert (await asyncio.gather(waiting, return_exceptions=True))[0].__class__ is asyncio.CancelledError
