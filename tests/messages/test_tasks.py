"""Tasks: how many run, how long results are kept, and for whom."""

from __future__ import annotations

import asyncio

import pytest

from retinue.core.call import Outcome
from retinue.core.errors import BusyError
from retinue.mesh.channel import Channel
from retinue.messages.codec.envelope import Envelope, new_envelope
from retinue.messages.tasks import MessageTask, Tasks


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def request() -> Envelope:
    return new_envelope("TASK_REQUEST", {}, sender="eddy", receiver="jules")


async def succeed(channel: Channel) -> Outcome:
    return Outcome("c", "repair", "done", agent="jules", value="mended")


async def wait(channel: Channel) -> Outcome:
    await asyncio.Event().wait()
    raise AssertionError("cancelled before")


async def end(task: MessageTask) -> None:
    assert task.work is not None
    await task.work


async def test_one_task_too_many_is_busy_until_another_ends() -> None:
    tasks = Tasks(running=2)
    first, _ = (tasks.start(request(), "eddy", "jules", wait) for _ in range(2))
    with pytest.raises(BusyError):
        tasks.start(request(), "eddy", "jules", succeed)
    await asyncio.sleep(0)
    await tasks.cancel(first)
    assert first.reply is not None
    assert first.reply.payload["error_code"] == "cancelled"
    await end(tasks.start(request(), "eddy", "jules", succeed))
    await tasks.aclose()


async def test_a_task_that_is_cancelled_before_it_began_has_an_end() -> None:
    tasks = Tasks()
    task = tasks.start(request(), "eddy", "jules", wait)
    await tasks.cancel(task)
    assert task.describe().performative == "FAILURE"
    await end(tasks.start(request(), "eddy", "jules", succeed))


async def test_results_are_kept_for_a_time_and_up_to_a_number() -> None:
    clock = Clock()
    tasks = Tasks(keep=2, keep_s=60.0, clock=clock)
    kept = []
    for _ in range(3):
        clock.now += 1.0
        task = tasks.start(request(), "eddy", "jules", succeed)
        await end(task)
        kept.append(task)
    assert [tasks.find(one.id, "eddy") for one in kept] == [None, *kept[1:]]
    assert tasks.find(kept[2].request.message_id, "eddy") is kept[2]
    assert tasks.find(kept[2].id, "mallory") is None
    clock.now += 60.0
    assert [tasks.find(one.id, "eddy") for one in kept] == [None, None, None]


async def test_observers_hear_the_progress_and_the_end() -> None:
    heard: list[str] = []
    began = asyncio.Event()

    async def work(channel: Channel) -> Outcome:
        await began.wait()
        await channel.progress(0.25, "reading")
        await channel.log("warning", "slow")
        return await succeed(channel)

    task = Tasks().start(request(), "eddy", "jules", work)
    task.observers.append(lambda _, reply: heard.append(reply.payload.get("comments", reply.performative)))
    began.set()
    await end(task)
    assert heard == ["25% reading", "warning: slow", "INFORM_RESULT"]
