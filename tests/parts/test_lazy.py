"""Values and apps that are made at their first use: once, ended while they open, closed at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.responses import Response
from starlette.types import ASGIApp

from retinue.parts.lazy import EndedError, Lazy, LazyApp
from tests.serving import serve_app
from tests.system import Wire, open_wire


class Clock:
    """What is opened; it opens when ``may_open`` is set."""

    def __init__(self) -> None:
        self.entered = self.left = self.ends = 0
        self.may_open = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Clock]:
        self.entered += 1
        await self.may_open.wait()
        yield self
        self.left += 1

    def end(self) -> None:
        self.ends += 1


async def test_a_value_is_entered_once_though_two_ask_at_once_and_left_at_the_end() -> None:
    clock = Clock()
    lazy = Lazy(clock.running, Clock.end)
    assert clock.entered == 0
    clock.may_open.set()
    assert set(await asyncio.gather(lazy.open(), lazy.open())) == {clock}
    assert lazy.made is clock
    await lazy.aclose()
    assert (clock.entered, clock.ends, clock.left) == (1, 1, 1)
    with pytest.raises(EndedError):
        await lazy.open()


async def test_a_value_that_opens_at_the_end_is_ended_and_left() -> None:
    clock = Clock()
    lazy = Lazy(clock.running, Clock.end)
    opening = asyncio.create_task(lazy.open())
    await asyncio.sleep(0)
    lazy.end()
    closing = asyncio.create_task(lazy.aclose())
    await asyncio.sleep(0)
    assert (clock.ends, clock.left) == (0, 0)
    clock.may_open.set()
    assert await opening is clock
    await closing
    assert clock.ends >= 1
    assert clock.left == 1


async def test_nothing_is_made_after_the_end() -> None:
    clock = Clock()
    lazy = Lazy(clock.running)
    await lazy.aclose()
    with pytest.raises(EndedError):
        await lazy.open()
    assert clock.entered == 0


async def test_an_opening_that_failed_is_tried_again() -> None:
    attempts = 0

    @asynccontextmanager
    async def make() -> AsyncIterator[str]:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise OSError("the disk is away")
        yield "open"

    lazy = Lazy(make)
    with pytest.raises(OSError, match="away"):
        await lazy.open()
    assert lazy.made is None
    assert await lazy.open() == "open"
    await lazy.aclose()


async def ask(wire: Wire, url: str) -> tuple[int, bytes]:
    reply = await wire.get(url)
    return reply.status, reply.body


async def test_an_app_is_made_at_its_first_request_and_answers_503_while_it_drains() -> None:
    made = 0
    is_draining = False

    async def make() -> ASGIApp:
        nonlocal made
        made += 1
        return Response("here")

    app = LazyApp(make, lambda: is_draining)
    assert made == 0
    async with serve_app(app) as url, open_wire() as wire:
        assert await ask(wire, url) == (200, b"here")
        assert await ask(wire, url) == (200, b"here")
        assert made == 1
        is_draining = True
        assert await ask(wire, url) == (503, b"this server is stopping")


async def test_the_first_request_after_the_end_is_answered_503() -> None:
    lazy = Lazy(Clock().running)
    await lazy.aclose()

    async def make() -> ASGIApp:
        await lazy.open()
        return Response("here")

    async with serve_app(LazyApp(make)) as url, open_wire() as wire:
        assert await ask(wire, url) == (503, b"this server is stopping")
