"""The mesh for programs without an event loop: the same methods, which wait for their result.

The calls run in an event loop of a thread of its own, so that they work in a notebook, whose own loop runs,
and in any number of threads.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent import futures
from contextlib import suppress
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, overload

from retinue.client.mesh_connection import MeshConnection
from retinue.client.run_handle import RunHandle
from retinue.client.updates import CallUpdate, Question, QuestionHandler, RunUpdate
from retinue.core.errors import CallCancelledError, InvalidRequestError

if TYPE_CHECKING:
    from retinue.core.budget import CallLimits
    from retinue.mesh.artifacts import Artifact, Content, SyncArtifact

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_END = object()

_NOTICE_S = 0.5
"""How often a thread that waits looks for signals."""


class LoopThread:
    """An event loop in a daemon thread, which starts with the first call and ends with `close`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # no coroutine is handed to a loop that is closed already
        self._handing = threading.Lock()
        self._process = os.getpid()
        self.is_closed = False

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in the loop and wait for its result; an interrupt cancels it.

        Raises RuntimeError in the thread of the loop itself, which must not wait, InvalidRequestError after
        `close` and in a forked process, which has no such thread, and CallCancelledError when another thread
        closes meanwhile.
        """
        if self._process != os.getpid():
            coroutine.close()
            raise InvalidRequestError(
                "the connection to the mesh belongs to the process that forked this one",
                remedy="open one with connect_sync() in each process",
            )
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError(
                "a call that waits was made in the event loop's own thread; use retinue.connect()"
            )
        step = _Step()
        try:
            # an interrupt may come before the future is here: the step is what can be cancelled at any time
            return _wait_for(self._hand_over(step, coroutine))
        except BaseException as error:
            self._give_up(step)
            if isinstance(error, futures.CancelledError) and self.is_closed:
                raise CallCancelledError("a call of a connection that was closed") from error
            raise

    def iterate(self, updates: AsyncGenerator[T, None]) -> Iterator[T]:
        """The items of an asynchronous iterator, which is closed with this one, or by `close`."""
        # a step that was interrupted ends before the iterator is closed
        stepping = asyncio.Lock()
        try:
            while (item := self.run(_next(updates, stepping))) is not _END:
                yield item
        finally:
            if not self.is_closed:
                # another thread may close meanwhile
                with suppress(CallCancelledError, InvalidRequestError):
                    self.run(_close(updates, stepping))

    def close(self, last: Callable[[], Awaitable[None]] | None = None) -> None:
        """Cancel the calls of other threads, run ``last``, stop the loop and wait for the end of its thread.

        ``last`` is not run where no call has started the loop, or in a forked process.
        """
        if self._process != os.getpid():
            self.is_closed = True
            return
        with self._handing:
            self.is_closed = True
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
            if loop is None or thread is None:
                return
            ending = asyncio.run_coroutine_threadsafe(_end_all(last), loop)
        try:
            _wait_for(ending)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _give_up(self, step: _Step) -> None:
        with self._handing:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(step.cancel)

    def _hand_over(self, step: _Step, coroutine: Coroutine[Any, Any, R]) -> futures.Future[R]:
        with self._handing:
            if self.is_closed:
                coroutine.close()
                raise InvalidRequestError(
                    "the connection to the mesh is closed", remedy="open another one with connect_sync()"
                )
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="retinue-connection", daemon=True
                )
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(step.run(coroutine), self._loop)


class _Step:
    """One coroutine in the loop, cancelled in the loop whether or not it has begun."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._is_cancelled = False

    async def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        self._task = asyncio.current_task()
        if self._is_cancelled:
            coroutine.close()
            raise asyncio.CancelledError
        return await coroutine

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()


def _wait_for(future: futures.Future[R]) -> R:
    """The result of a future.

    A signal that arrives just before the thread begins to wait does not wake it. So the thread wakes by
    itself, and Ctrl-C takes effect after ``_NOTICE_S`` at the latest.
    """
    while not futures.wait((future,), _NOTICE_S).done:
        pass
    return future.result()


async def _next(updates: AsyncGenerator[T, None], stepping: asyncio.Lock) -> Any:
    async with stepping:
        return await anext(updates, _END)


async def _close(updates: AsyncGenerator[T, None], stepping: asyncio.Lock) -> None:
    async with stepping:
        await updates.aclose()


async def _end_all(last: Callable[[], Awaitable[None]] | None) -> None:
    """Cancel all other tasks of the loop and wait for their ends, run ``last``, then close its generators."""
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    try:
        if last is not None:
            await last()
    finally:
        await asyncio.get_running_loop().shutdown_asyncgens()


def in_thread(handler: QuestionHandler) -> QuestionHandler:
    """The handler as a coroutine function that runs it in a thread, where it may wait for a person."""

    async def answer(question: Question) -> Any:
        answer = await asyncio.to_thread(handler, question)
        return await answer if asyncio.iscoroutine(answer) else answer

    return answer


def _waiting(
    method: Callable[Concatenate[MeshConnection, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncMeshConnection, P], R]:
    """The method of the same name that waits for the result."""

    @wraps(method)
    def wait(self: SyncMeshConnection, /, *arguments: P.args, **keywords: P.kwargs) -> R:
        return self._thread.run(method(self._mesh, *arguments, **keywords))

    return wait


def _waiting_run(
    method: Callable[Concatenate[RunHandle, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncRunHandle, P], R]:
    @wraps(method)
    def wait(self: SyncRunHandle, /, *arguments: P.args, **keywords: P.kwargs) -> R:
        return self._thread.run(method(self._run, *arguments, **keywords))

    return wait


class SyncRunHandle:
    """A run by its id, as `RunHandle`; each method waits for its result."""

    def __init__(self, run: RunHandle, thread: LoopThread) -> None:
        self._run = run
        self._thread = thread

    def __repr__(self) -> str:
        return f"SyncRunHandle({self.id!r})"

    @property
    def id(self) -> str:
        """The id of the run."""
        return self._run.id

    def events(self, *, after: int = 0, progress: bool | None = None) -> Iterator[RunUpdate]:
        """As `RunHandle.events`."""
        return self._thread.iterate(self._run.events(after=after, progress=progress))

    @overload
    def result(self, *, timeout_s: float | None = None) -> Any: ...

    @overload
    def result(self, *, timeout_s: float | None = None, into: type[T]) -> T: ...

    def result(self, *, timeout_s: float | None = None, into: Any = None) -> Any:
        """As `RunHandle.result`."""
        return self._thread.run(self._run.result(timeout_s=timeout_s, into=into))

    def rerun(self, from_step: str, *, id: str | None = None) -> SyncRunHandle:  # noqa: A002 - as of start
        """As `RunHandle.rerun`."""
        return SyncRunHandle(self._thread.run(self._run.rerun(from_step, id=id)), self._thread)

    show = _waiting_run(RunHandle.show)
    status = _waiting_run(RunHandle.status)
    signal = _waiting_run(RunHandle.signal)
    cancel = _waiting_run(RunHandle.cancel)
    resume = _waiting_run(RunHandle.resume)
    extend = _waiting_run(RunHandle.extend)


class SyncMeshConnection:
    """A mesh, reached through its hub; made by `connect_sync`, used as ``with connect_sync() as mesh``.

    Has the methods of `MeshConnection`, each of which waits for its result. Every failure is a
    `RetinueError`.
    """

    def __init__(self, mesh: MeshConnection) -> None:
        self._mesh = mesh
        self._thread = LoopThread()

    def __enter__(self) -> Self:
        self._thread.run(self._mesh.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread; the end of the ``with`` block does it.

        Calls of other threads end with CallCancelledError, later ones with InvalidRequestError.
        """
        self._thread.close(self._mesh.aclose)

    find = _waiting(MeshConnection.find)
    agents = _waiting(MeshConnection.agents)
    show = _waiting(MeshConnection.show)
    ask_agents = _waiting(MeshConnection.ask_agents)
    imports = _waiting(MeshConnection.imports)
    publish = _waiting(MeshConnection.publish)

    def save(
        self, content: Content, media_type: str | None = None, *, name: str | None = None
    ) -> SyncArtifact:
        """As `MeshConnection.save`; the artifact has methods that wait."""
        return self._bind(self._thread.run(self._mesh.save(content, media_type, name=name)))

    def artifact(self, link: Any) -> SyncArtifact:
        """As `MeshConnection.artifact`; the artifact has methods that wait."""
        return self._bind(self._mesh.artifact(link))

    def _bind(self, artifact: Artifact) -> SyncArtifact:
        from retinue.mesh.artifacts import SyncArtifact

        return SyncArtifact(artifact, self._thread.run)

    @overload
    def call(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        into: type[T],
        agent: str | None = None,
        version: str | None = None,
        key: str | None = None,
        timeout_s: float | None = None,
        budget: CallLimits | None = None,
        **keywords: Any,
    ) -> T: ...

    @overload
    def call(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        into: None = None,
        agent: str | None = None,
        version: str | None = None,
        key: str | None = None,
        timeout_s: float | None = None,
        budget: CallLimits | None = None,
        **keywords: Any,
    ) -> Any: ...

    def call(self, skill: str, arguments: Mapping[str, Any] | None = None, /, **options: Any) -> Any:
        """As `MeshConnection.call`."""
        return self._thread.run(self._mesh.call(skill, arguments, **options))

    ask = _waiting(MeshConnection.ask)

    def stream(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        agent: str | None = None,
        version: str | None = None,
        timeout_s: float | None = None,
        budget: CallLimits | None = None,
        **keywords: Any,
    ) -> Iterator[CallUpdate]:
        """As `MeshConnection.stream`."""
        updates = self._mesh.stream(
            skill,
            arguments,
            agent=agent,
            version=version,
            timeout_s=timeout_s,
            budget=budget,
            **keywords,
        )
        return self._thread.iterate(updates)

    def start(
        self,
        workflow: str | Mapping[str, Any],
        input: Any = None,  # noqa: A002 - the word of the command line and of the grammar
        *,
        id: str | None = None,  # noqa: A002 - the word of the command line
        agents: Mapping[str, str] | None = None,
        timeouts: Mapping[str, Any] | None = None,
        budget: CallLimits | None = None,
        progress: bool = False,
    ) -> SyncRunHandle:
        """As `MeshConnection.start`."""
        starting = self._mesh.start(
            workflow, input, id=id, agents=agents, timeouts=timeouts, budget=budget, progress=progress
        )
        return SyncRunHandle(self._thread.run(starting), self._thread)

    def run(self, id: str) -> SyncRunHandle:  # noqa: A002 - as of start
        """The run of this id, which another program may have started; sends nothing."""
        return SyncRunHandle(self._mesh.run(id), self._thread)

    def rerun(self, run: str, from_step: str, *, id: str | None = None) -> SyncRunHandle:  # noqa: A002
        """As `MeshConnection.rerun`."""
        return self.run(run).rerun(from_step, id=id)

    runs = _waiting(MeshConnection.runs)
    workflows = _waiting(MeshConnection.workflows)
    schedules = _waiting(MeshConnection.schedules)
    schedule = _waiting(MeshConnection.schedule)
    change_schedule = _waiting(MeshConnection.change_schedule)
    orchestrate = _waiting(MeshConnection.orchestrate)
