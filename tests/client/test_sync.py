"""A program without an event loop, a notebook whose loop runs, and threads use the mesh."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue import Agent, Context
from retinue.client.mesh_connection import MeshConnection
from retinue.client.run_handle import RunHandle
from retinue.client.sync_connection import LoopThread, SyncMeshConnection, SyncRunHandle
from retinue.core.errors import (
    CallCancelledError,
    ExecutionFailedError,
    InvalidParametersError,
    InvalidRequestError,
)
from tests.client.hubs import hub_in_thread

APPROVED = {"name": "approved", "steps": [{"id": "ask", "wait_for": {"topic": "approve"}}]}


@dataclass
class Size:
    words: int


def word_agent() -> Agent:
    agent = Agent("word-agent", logging=True)

    @agent.skill
    async def measure(text: str, ctx: Context) -> dict[str, int]:
        """Measures a text."""
        await ctx.progress(0.5, "counting")
        return {"words": len(text.split())}

    @agent.skill
    async def greet(ctx: Context) -> str:
        """Greets a person."""
        return f"Hello, {await ctx.elicit('Who are you?', str)}"

    @agent.skill
    async def fail() -> None:
        """Fails."""
        raise ValueError("no")

    return agent


@pytest.fixture
def hub(retinue_home: Path) -> Iterator[None]:
    """A hub with an agent, in a loop of another thread."""
    with hub_in_thread(retinue_home, word_agent()):
        yield


@pytest.mark.usefixtures("hub")
def test_a_program_calls_finds_and_streams_without_a_loop() -> None:
    with retinue.connect_sync() as mesh:
        assert mesh.call("measure", text="one two") == {"words": 2}
        assert mesh.call("measure", {"text": "one"}, into=Size) == Size(1)
        assert mesh.ask("fail").status == "failed"
        assert mesh.find("measure a text")[0].skill == "measure"
        assert "word-agent" in [row["name"] for row in mesh.agents()]
        updates = list(mesh.stream("measure", text="a"))
        assert [update.kind for update in updates] == ["progress", "outcome"]
        for update in mesh.stream("measure", text="a"):
            assert update.text == "counting"
            break
        with pytest.raises(ExecutionFailedError):
            mesh.call("fail")
        with pytest.raises(InvalidParametersError):
            mesh.call("measure")


@pytest.mark.usefixtures("hub")
def test_a_run_is_followed_and_signalled_without_a_loop() -> None:
    with retinue.connect_sync() as mesh:
        run = mesh.start(APPROVED, id="mine")
        for update in run.events():
            if update.step == "ask" and update.kind == "step_started":
                run.signal("approve", 7)
        assert run.result() == 7
        assert mesh.run("mine").status() == "done"
        assert repr(mesh.run("mine")) == "SyncRunHandle('mine')"


@pytest.mark.usefixtures("hub")
async def test_it_works_in_a_notebook_whose_loop_runs() -> None:
    mesh = retinue.connect_sync()
    try:
        assert mesh.call("measure", text="one") == {"words": 1}
    finally:
        mesh.close()


@pytest.mark.usefixtures("hub")
def test_threads_share_a_connection() -> None:
    with retinue.connect_sync() as mesh, ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(lambda number: mesh.call("measure", text="a " * number)["words"], range(40)))
        before = threading.active_count()
    assert counts == list(range(40))
    assert threading.active_count() < before


@pytest.mark.usefixtures("hub")
def test_a_question_is_answered_in_a_thread_that_may_wait() -> None:
    asked: list[str] = []

    def answer(question: Any) -> str:
        asked.append(threading.current_thread().name)
        return "Ada"

    with retinue.connect_sync(on_question=answer) as mesh:
        assert mesh.call("greet") == "Hello, Ada"
    assert asked != ["retinue-connection"]


def test_an_interrupt_cancels_the_call() -> None:
    cancelled = threading.Event()
    thread = LoopThread()

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def interrupt() -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, lambda number, frame: interrupt())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            thread.run(wait())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert cancelled.wait(60)
    thread.close()


def test_a_call_that_waits_is_refused_in_the_thread_of_the_loop() -> None:
    thread = LoopThread()

    async def nested() -> None:
        thread.run(asyncio.sleep(0))

    with pytest.raises(RuntimeError, match=r"use retinue\.connect"):
        thread.run(nested())
    thread.close()


@pytest.mark.parametrize(
    ("sync", "plain"), [(SyncMeshConnection, MeshConnection), (SyncRunHandle, RunHandle)], ids=["mesh", "run"]
)
def test_each_method_has_a_twin_that_waits(sync: type, plain: type) -> None:
    def methods(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")} - {"aclose", "close", "id"}

    assert methods(sync) == methods(plain)


def test_calls_of_other_threads_end_when_the_connection_is_closed() -> None:
    thread, started = LoopThread(), threading.Event()
    ended: list[str] = []

    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    async def last() -> None:
        ended.append("last")

    def call() -> None:
        with pytest.raises(CallCancelledError):
            thread.run(wait())
        ended.append("call")

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    assert started.wait(60)
    thread.close(last)
    caller.join(60)
    assert sorted(ended) == ["call", "last"]


def test_a_closed_connection_starts_no_loop_again() -> None:
    thread, closed = LoopThread(), threading.Event()
    before = threading.active_count()

    async def count() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            closed.set()

    numbers = thread.iterate(count())
    assert next(numbers) == 1
    thread.close()
    assert closed.is_set()
    with pytest.raises(InvalidRequestError, match="closed"):
        next(numbers)
    left_open = thread.iterate(count())
    with pytest.raises(InvalidRequestError):
        list(left_open)
    with pytest.raises(InvalidRequestError):
        thread.run(asyncio.sleep(0))
    thread.close()
    assert threading.active_count() == before


def test_an_interrupt_of_an_iteration_is_a_keyboard_interrupt() -> None:
    thread = LoopThread()
    main = threading.get_ident()

    async def updates() -> AsyncGenerator[int, None]:
        try:
            yield 1
            signal.pthread_kill(main, signal.SIGALRM)
            await asyncio.Event().wait()
        finally:
            # as a call that tells its hub that it was cancelled
            await asyncio.sleep(0.05)

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(thread.iterate(updates()))
    finally:
        signal.signal(signal.SIGALRM, previous)
    thread.close()


@pytest.mark.timeout(20)
def test_an_interrupt_while_a_step_is_handed_to_the_loop_ends_the_iteration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thread = LoopThread()
    hand_over = asyncio.run_coroutine_threadsafe
    ends: list[str] = []

    async def updates() -> AsyncGenerator[int, None]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            ends.append("closed")

    def interrupt(coroutine: Any, loop: asyncio.AbstractEventLoop) -> None:
        hand_over(coroutine, loop)
        monkeypatch.undo()
        raise KeyboardInterrupt

    iterator = thread.iterate(updates())
    assert next(iterator) == 1
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert ends == ["closed"]
    thread.close()
