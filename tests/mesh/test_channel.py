"""While a caller is being asked, the time of its call stands still, and then goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from retinue.mesh.channel import NullChannel, PausingChannel
from retinue.mesh.time_limit import TICK_S, TimeLimit

LIMIT_S = TICK_S * 2


class SlowPerson(NullChannel):
    """Takes longer for an answer than the call has time."""

    async def elicit(self, message: str, schema: Mapping[str, Any], *, key: str | None = None) -> Any:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(LIMIT_S * 2, answer.set_result, "yes")
        return await answer


async def test_an_open_question_does_not_use_up_the_time_of_its_call() -> None:
    with TimeLimit(LIMIT_S) as limit:
        channel = PausingChannel(SlowPerson(), limit)
        assert await channel.elicit("go on?", {}) == "yes"
        assert limit.when is not None
    assert not limit.expired


async def test_two_open_questions_count_once() -> None:
    with TimeLimit(LIMIT_S) as limit:
        channel = PausingChannel(SlowPerson(), limit)
        await asyncio.gather(channel.elicit("a?", {}), channel.elicit("b?", {}))
    assert not limit.expired


async def test_after_the_answer_the_time_goes_on() -> None:
    async def work() -> None:
        with TimeLimit(LIMIT_S) as limit:
            await PausingChannel(SlowPerson(), limit).elicit("go on?", {})
            await asyncio.get_running_loop().create_future()

    with pytest.raises(TimeoutError):
        await work()
