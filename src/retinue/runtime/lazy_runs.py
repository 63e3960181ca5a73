"""The durable workflow runs of a process, opened at their first use."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import structlog

from retinue.core.errors import InvalidSettingError, RetinueError, StateError, StorageFullError
from retinue.hub.mesh_map import RunNode
from retinue.parts.lazy import Lazy
from retinue.settings import Settings
from retinue.storage.run_store import RunStore
from retinue.storage.state import State
from retinue.workflows.run_progress import RunProgress
from retinue.workflows.runs.hosting import HostedWorkflow
from retinue.workflows.runs.ports import Body, Runs
from retinue.workflows.runs.records import RunEvent, RunRecord, RunRequest

if TYPE_CHECKING:
    from retinue.storage.artifacts.state_artifacts import StateArtifacts
    from retinue.workflows.durable.database_watch import RunFigures
    from retinue.workflows.durable.retention import OnDeleted
    from retinue.workflows.durable.runs import DurableRuns
    from retinue.workflows.durable.tables.approvals import ApprovalTable
    from retinue.workflows.durable.tables.call_counts import CallCountTable
    from retinue.workflows.durable.tables.revised import ScheduleTable
    from retinue.workflows.durable.tables.sessions import SessionTable
    from retinue.workflows.durable.tables.triggers import TriggerTable

_log = structlog.get_logger("retinue.runs")

IDLE_S = 3.0
"""How long a hub has had no call in flight when it starts the engine of its runs before it is asked for."""

RETRY_S = 5.0
"""Seconds between two attempts to connect to the database of the runs."""

LOOK_S = 1.0
"""Seconds between two looks for runs that another process stored in this state."""


class LazyRuns:
    """Lazily opened durable runs: importing DBOS takes longer than most commands.

    Runs are stored in the state folder or in the configured database. A process has one instance.
    """

    def __init__(self, settings: Settings, state: State, *, retry_s: float = RETRY_S) -> None:
        self._retry_s = retry_s
        self.store = RunStore(settings.database, state.runs)
        """Where the runs are stored."""
        self.problem: RetinueError | None = None
        """Why the last attempt to execute runs has failed; None if it has not."""
        self._on_deleted: OnDeleted | None = None
        self._progress: RunProgress | None = None
        self._options = settings.runs
        self._nodes = state.nodes
        self._asked = asyncio.Event()
        self._runs = Lazy(self._executing)
        self._body: Body
        self._hosted: Sequence[HostedWorkflow] = ()
        self._executes = False

    @asynccontextmanager
    async def open(self, body: Body, hosted: Sequence[HostedWorkflow] = ()) -> AsyncIterator[Runs]:
        """Runs that execute ``body``; on leaving they are closed, and another process resumes them.

        ``hosted`` are the workflows in Python that it executes.
        """
        self._body, self._hosted = body, hosted
        opened_by_call = _OpenedByCall(self._runs, self._open, lambda: self._executes and self.store.exists())
        try:
            yield cast(Runs, opened_by_call)
        finally:
            await self._runs.aclose()
            opened_by_call.forget()

    async def launch(
        self,
        echo: Callable[[str], None],
        *,
        refuse_full: bool = False,
        announces: bool = False,
        wait_until_idle: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Start to execute runs when the database answers; prints one line if it does not.

        Raises InvalidSettingError for a database that can hold no runs, and with ``refuse_full``
        StorageFullError if the disk is full at the first attempt.

        A state without runs has none to take over: DBOS, 30 MB, is loaded once a run is asked for here or
        another process has stored one. With ``announces`` it is loaded at once where this process hosts
        workflows in Python, so that others know them. With ``wait_until_idle`` it is loaded when that
        returns, if not before, because it takes seconds, which the first run would wait.
        """
        self._executes = True
        idle = None if wait_until_idle is None else asyncio.ensure_future(wait_until_idle())
        try:
            has_news = announces and bool(self._hosted)
            while not (has_news or self.store.exists() or (idle is not None and idle.done())):
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._asked.wait()
                        break
        finally:
            if idle is not None:
                idle.cancel()
        is_reported = False
        while True:
            try:
                await (await self._open()).launch()
            except Exception as caught:
                error = self.problem = _as_reason(caught)
                if isinstance(caught, InvalidSettingError):
                    raise
                if is_reported:
                    _log.debug("workflows do not run", error=error.message)
                elif refuse_full and isinstance(error, StorageFullError):
                    raise
                else:
                    echo(f"workflows are paused: {error.message}; {error.remedy}")
                    is_reported = True
                await asyncio.sleep(self._retry_s)
            else:
                self.problem = None
                return

    async def read_figures(self) -> RunFigures | None:
        """Figures of the runs and their database; None if this process has opened none."""
        return None if self._runs.made is None else await self._runs.made.read_figures()

    async def list_nodes(self) -> Sequence[RunNode]:
        """The living nodes of the database, as this process last read them."""
        figures = await self.read_figures()
        if figures is None:
            return ()
        return [
            RunNode(node.executor, node.running, node.executor == figures.own_node) for node in figures.nodes
        ]

    async def find_held_artifacts(self, digests: Collection[str]) -> Collection[str]:
        """The digests among these that stored runs hold."""
        return await (await self._open()).find_held_artifacts(digests) if self.store.exists() else ()

    def hold_artifacts(self, artifacts: StateArtifacts) -> None:
        """Stored runs hold the artifacts of their state from now on, and deleted runs release theirs."""
        artifacts.find_held = self.find_held_artifacts
        self._on_deleted = artifacts.release

    def share_reports(self, progress: RunProgress) -> None:
        """Exchange what steps report with the other processes of this database."""
        self._progress = progress

    async def tell_deleted(self, runs: Sequence[str], digests: Sequence[str]) -> None:
        """Release the artifacts of deleted runs."""
        if self._on_deleted is not None:
            await self._on_deleted(runs, digests)

    async def open_schedules(self) -> ScheduleTable:
        """The schedules, which are stored with the runs."""
        return (await self._open()).schedules

    async def open_triggers(self) -> TriggerTable:
        """The triggers, which are stored with the runs."""
        return (await self._open()).triggers

    async def open_approvals(self) -> ApprovalTable:
        """The approvals, which are stored with the runs."""
        return await (await self._open()).open_approvals()

    async def open_call_counts(self) -> CallCountTable:
        """The counted calls of policies, which are stored with the runs."""
        return await (await self._open()).open_call_counts()

    async def announce_policies(self, digest: str) -> bool:
        """Tell the other nodes which policies this one has; False where it is no node."""
        figures = await self.read_figures()
        if figures is None or figures.own_node is None:
            return False
        await (await (await self._open()).open_policy_digests()).announce(figures.own_node, digest)
        return True

    async def find_other_policies(self, digest: str) -> Mapping[str, str]:
        """The living nodes whose policies have another digest, with it; {} where this process is no node."""
        figures = await self.read_figures()
        if figures is None or figures.own_node is None or len(figures.nodes) < 2:
            return {}
        digests = await (await (await self._open()).open_policy_digests()).read()
        living = {node.executor for node in figures.nodes} - {figures.own_node}
        return {node: digests[node] for node in living if digests.get(node, digest) != digest}

    async def open_sessions(self) -> SessionTable:
        """The sessions of steps ``think``, which are stored with the runs."""
        return await (await self._open()).open_sessions()

    async def leave(self) -> None:
        """Stop executing runs; another process resumes them."""
        if self._runs.made is not None:
            await self._runs.made.leave()

    async def _open(self) -> DurableRuns:
        self._asked.set()
        return await self._runs.open()

    @asynccontextmanager
    async def _executing(self) -> AsyncIterator[DurableRuns]:
        durable = await asyncio.to_thread(import_module, "retinue.workflows.durable.runs")
        runs: DurableRuns = durable.DurableRuns(
            self._body,
            url=self.store.url,
            nodes=self._nodes,
            options=durable.DurableOptions(
                lease_s=self._options.lease_s,
                concurrency=self._options.concurrency,
                keep=self._options.keep,
                keep_days=self._options.keep_days,
                keep_ids_days=self._options.keep_ids_days,
            ),
            on_deleted=self.tell_deleted,
            hosted=self._hosted,
            progress=self._progress,
        )
        # what the import made lives as long as the process; each full collection would take 0.1 s
        gc.freeze()
        try:
            yield runs
        finally:
            await runs.aclose()


def _as_reason(error: Exception) -> RetinueError:
    """The error itself, or one for a defect of the engine, with which a hub would seem to be well."""
    if isinstance(error, RetinueError):
        return error
    _log.error("the run engine does not start", exc_info=error)
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    return StateError(f"the run engine does not start: {text}", remedy="see the log of this process")


class _OpenedByCall:
    """`Runs` whose methods open the durable runs first.

    Calls that come while they open wait for the runs that are started meanwhile, because a person may signal
    or list a run at once.
    """

    def __init__(
        self, runs: Lazy[DurableRuns], open_runs: Callable[[], Awaitable[Runs]], may_open: Callable[[], bool]
    ) -> None:
        self._runs = runs
        self._open_runs = open_runs
        self._may_open = may_open
        self._starting = 0
        self._started = asyncio.Event()
        self._started.set()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name not in vars(Runs):
            raise AttributeError(f"runs have no {name!r}")
        if self._runs.made is not None and not self._starting:
            opened: Callable[..., Awaitable[Any]] = getattr(self._runs.made, name)
            setattr(self, name, opened)  # from now on it is found here
            return opened

        async def call(*arguments: Any, **options: Any) -> Any:
            runs = await self._open_runs()
            await self._started.wait()
            return await getattr(runs, name)(*arguments, **options)

        return call

    async def start(self, request: RunRequest, *, run_id: str | None = None) -> RunRecord:
        if self._runs.made is not None:
            vars(self)["start"] = start = self._runs.made.start  # from now on it is found here
            return await start(request, run_id=run_id)
        self._starting += 1
        self._started.clear()
        try:
            return await (await self._open_runs()).start(request, run_id=run_id)
        finally:
            self._starting -= 1
            if not self._starting:
                self._started.set()

    async def list_hosted(self) -> tuple[HostedWorkflow, ...]:
        """Opens no runs in a process that executes none, nor where no process can have announced any."""
        if self._runs.made is None and not self._may_open():
            return ()
        return await (await self._open_runs()).list_hosted()

    def forget(self) -> None:
        """Look the methods up again, because the runs are closed."""
        for name in vars(Runs).keys() & vars(self).keys():
            delattr(self, name)

    async def follow(self, run_id: str, *, after: int = 0) -> AsyncIterator[RunEvent]:
        async for event in (await self._open_runs()).follow(run_id, after=after):
            yield event
