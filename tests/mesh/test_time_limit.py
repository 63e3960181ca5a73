"""Time limits that share a timer end blocks at their time, and never another one."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest

from retinue.mesh.time_limit import LATE_S, TICK_S, Alarm, TimeLimit

LONG_S = 60.0
BOUND_S = 5.0


class Bell(Alarm):
    """An alarm that can be waited for."""

    def __init__(self, delay_s: float) -> None:
        super().__init__()
        loop = asyncio.get_running_loop()
        self.rung: asyncio.Future[None] = loop.create_future()
        self.set(loop.time() + delay_s)

    def ring(self) -> None:
        self.rung.set_result(None)


async def never() -> None:
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("timeout_s", [0.0, TICK_S / 2, TICK_S * 2])
async def test_a_block_that_outlives_its_limit_is_cut_off_at_its_time(timeout_s: float) -> None:
    clock = asyncio.get_running_loop().time
    began = clock()
    limit = TimeLimit(timeout_s)
    with pytest.raises(TimeoutError), limit:
        await never()
    assert limit.expired
    assert timeout_s * 0.9 <= clock() - began < BOUND_S


async def test_a_block_that_ends_in_time_is_left_alone() -> None:
    with TimeLimit(TICK_S * 2) as limit:
        await Bell(0.0).rung
    await Bell(TICK_S * 3).rung
    assert not limit.expired


async def test_a_cancellation_from_elsewhere_stays_one() -> None:
    async def work() -> None:
        with TimeLimit(LONG_S):
            await never()

    task = asyncio.create_task(work())
    await Bell(0.0).rung
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_limit_can_be_lifted_and_set_again() -> None:
    async def work(limit: TimeLimit) -> None:
        with limit:
            limit.reschedule(None)
            await Bell(TICK_S * 3).rung
            assert not limit.expired
            limit.reschedule(asyncio.get_running_loop().time() + TICK_S * 2)
            await never()

    with pytest.raises(TimeoutError):
        await work(TimeLimit(TICK_S * 2))


async def test_the_inner_limit_of_two_ends_only_its_own_block() -> None:
    with TimeLimit(LONG_S) as outer:
        with pytest.raises(TimeoutError), TimeLimit(TICK_S * 2):
            await never()
        await Bell(0.0).rung
    assert not outer.expired


async def test_ten_thousand_short_blocks_leave_no_timer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    timers = 0
    call_at = loop.call_at

    def counted(*given: object, **named: object) -> object:
        nonlocal timers
        timers += 1
        return call_at(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_at", counted)
    for _ in range(10_000):
        with TimeLimit(LONG_S):
            pass
    # whoever is slow enough to see ticks pays for those, not for the calls
    assert timers < 1_000


def test_loops_in_two_threads_and_one_after_the_other_do_not_mix() -> None:
    async def overdue() -> bool:
        try:
            with TimeLimit(TICK_S * 2):
                await never()
        except TimeoutError:
            return True
        return False

    ended: list[bool] = []
    threads = [threading.Thread(target=lambda: ended.append(asyncio.run(overdue()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    ended += [asyncio.run(overdue()), asyncio.run(overdue())]
    for thread in threads:
        thread.join(BOUND_S)
    assert ended == [True] * 4


async def test_an_alarm_that_was_unset_does_not_ring() -> None:
    early, late, kept = Bell(TICK_S * 3), Bell(TICK_S * 3), Bell(TICK_S * 4)
    early.unset()
    await Bell(TICK_S * 2).rung
    while late.rung.done():  # the process stood still for a tick
        late, kept = Bell(TICK_S * 3), Bell(TICK_S * 4)
        await Bell(TICK_S * 2).rung
    late.unset()
    await kept.rung
    assert not early.rung.done()
    assert not late.rung.done()


async def test_an_answer_that_came_while_the_process_stood_still_is_taken_before_the_limit_rings() -> None:
    """Between two sockets: the answer arrives, the process sleeps past the limit, and then reads it."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    with TimeLimit(TICK_S) as limit:
        answer = asyncio.create_task(reader.readexactly(3))
        await asyncio.sleep(0)
        theirs.sendall(b"yes")
        time.sleep(2 * LATE_S)  # noqa: ASYNC251  # stopped, as by SIGSTOP
        assert await answer == b"yes"
    assert not limit.expired
    writer.close()
    theirs.close()


async def test_a_process_that_stood_still_is_cut_off_soon_after_where_no_answer_came() -> None:
    async def work() -> None:
        with TimeLimit(TICK_S):
            pending = asyncio.create_task(never())
            await asyncio.sleep(0)
            time.sleep(2 * LATE_S)  # noqa: ASYNC251  # stopped, as by SIGSTOP
            await pending

    with pytest.raises(TimeoutError):
        await work()
