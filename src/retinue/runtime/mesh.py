"""Composes the mesh of one process: registries, directory, dispatcher, workflow runs and the hub's agent.

The hub composes it with a store and endpoints. A command without a hub composes it read-only and runs the
same skills in its own process.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

import structlog

from retinue.authoring.agent import Agent
from retinue.authoring.local import LocalFirst, LocalInvoker, LocalLookup
from retinue.core.errors import StateError, StorageFullError
from retinue.core.record import HUB_NAME
from retinue.hub.hub_agent import hub_agent
from retinue.hub.mesh_map import RunNode
from retinue.hub.orchestration.conversations import Conversations
from retinue.hub.orchestration.skills import SpendingOf
from retinue.hub.orchestration.tool_list import ToolList
from retinue.hub.resources import WorkflowPrompts
from retinue.mesh.admission import Admission, Limits
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listing_cache import ExposeOverride
from retinue.mesh.directory.listings import Listings
from retinue.mesh.directory.routing import make_strategy
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.guard.trace_guard import TraceGuard
from retinue.mesh.health.agent_stats import AgentStatsTable
from retinue.mesh.observing.call_figures import CallFigures, TrackRecord
from retinue.mesh.observing.events import EventBus
from retinue.mesh.permissions import Access
from retinue.mesh.search.ranking import SkillSearch
from retinue.mesh.search.text_index import MemoryTextIndex, TextIndex
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import Registry, publish_workflow
from retinue.oci.server.webhooks import Notifications
from retinue.parts.lazy import Lazy
from retinue.rpc.queries import PeerQueries
from retinue.runtime.access import hub_access
from retinue.runtime.factories import (
    HOME_SOURCE,
    guard_settings,
    limit_settings,
    named_registries,
    registry_sources,
    timeout_settings,
)
from retinue.runtime.observing.telemetry import span_opener
from retinue.runtime.peers import Peers, make_peers
from retinue.runtime.shelves import open_shelves
from retinue.settings import Settings, environment
from retinue.storage.run_store import RunStore
from retinue.storage.state import State
from retinue.web.http_client import HttpClient
from retinue.workflows.caller import MemoryCache
from retinue.workflows.dispatch_caller import DispatchCaller
from retinue.workflows.interpreter.frame import Tools
from retinue.workflows.interpreter.step_loop import Interpreter
from retinue.workflows.library import Library
from retinue.workflows.orchestrator import Orchestrator
from retinue.workflows.runs.ports import Body, Runs
from retinue.workflows.runs.records import RunEvent

if TYPE_CHECKING:
    from retinue.workflows.durable.database_watch import RunFigures
    from retinue.workflows.durable.runs import DurableRuns

_log = structlog.get_logger("retinue.runs")

RETRY_S = 5.0
"""Seconds between two attempts to connect to the database of the runs."""

LOOK_S = 1.0
"""Seconds between two looks for runs that another process stored in this state."""


@dataclass(slots=True)
class Mesh:
    """The core of a process that has a directory: what parts of it share; made by `open_mesh`."""

    agent: Agent
    dispatcher: Dispatcher
    lookup: LocalFirst
    directory: Directory
    search: SkillSearch
    registries: Registries
    http: HttpClient
    prompts: WorkflowPrompts
    tools: ToolList
    figures: CallFigures
    peers: Peers
    run_store: RunStore

    @property
    def events(self) -> EventBus:
        """The events of the calls of this process."""
        return self.dispatcher.admission.events

    @property
    def access(self) -> Access:
        """Which agents a caller sees."""
        return self.dispatcher.access

    async def synchronize(self) -> None:
        """Let the search know the agents of all sources; to be called when every source has been added."""
        await self.search.synchronize([entry.id for entry in self.directory.list_held()])

    def products(self) -> Iterable[tuple[type, object]]:
        """What parts find by its class."""
        yield Mesh, self
        for product in (
            self.directory,
            self.search,
            self.registries,
            self.prompts,
            self.tools,
            self.figures,
            self.peers,
            self.peers.mcp_client,
            self.run_store,
        ):
            yield type(product), product


@dataclass(frozen=True, slots=True)
class Registries:
    """The registries by source name, the one of the state folder first, and their notifications."""

    home: LayoutRegistry
    by_name: Mapping[str, Registry]
    notifications: Notifications


@asynccontextmanager
async def open_mesh(
    settings: Settings,
    state: State,
    listings: Listings,
    *,
    open_runs: Callable[[Body], AbstractAsyncContextManager[Runs]],
    hub_id: str | None = None,
    url: str | None = None,
    texts: TextIndex | None = None,
    spending_of: SpendingOf = lambda agent: None,
) -> AsyncIterator[Mesh]:
    """Compose the mesh of ``state`` and the configured registries; closed on leaving.

    Parts add further sources, invokers and skills; `SkillSearch.synchronize` follows them. ``spending_of``
    tells what a model agent has spent. ``open_runs`` opens the workflow runs, each of which executes the
    given body; production code passes `LazyRuns.open`.
    """
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(HttpClient(allow_private=settings.allow_private_urls))
        home = LayoutRegistry(state.registry)
        named = named_registries(settings, home, http, state)
        directory = Directory(
            listings,
            registry_sources(settings, named, state),
            ttl_s=settings.directory.ttl_s,
            expose_override=ExposeOverride(settings.hub.expose) if settings.hub.expose else None,
        )
        stack.push_async_callback(directory.aclose)
        notifications = Notifications(directory, named)
        stack.push_async_callback(notifications.aclose)
        search = _make_search(directory, texts)
        peers = make_peers(settings, state, http, named)
        lookup = LocalFirst(directory, peers.remote)
        dispatcher = _make_dispatcher(settings, directory, lookup, peers, hub_id)
        events = dispatcher.admission.events
        figures = CallFigures(catch_up=events.flush)
        events.subscribe_later(figures.observe)
        track = TrackRecord(figures, dispatcher.agent_stats)
        caller = _make_caller(dispatcher, lookup, directory, track)
        step_cache = MemoryCache()
        runs = await stack.enter_async_context(open_runs(Interpreter(Tools(caller, step_cache)).run))

        async def store_workflow(name: str, text: bytes) -> str:
            published = await publish_workflow(home, name, text, created=datetime.now(UTC))
            return f"{published.repository}:{published.tag}"

        made = hub_agent(
            directory,
            search,
            Orchestrator(runs),
            Library(open_shelves(settings, state, named, own=HOME_SOURCE)),
            version=version("retinue"),
            caller=caller,
            track=track,
            conversations=Conversations(state.read_session, state.write_session),
            clear_steps=step_cache.clear,
            access=dispatcher.access,
            spending_of=spending_of,
            store_workflow=store_workflow,
        )
        agent = made.agent
        run_store = RunStore(settings.database, state.runs)
        if run_store.exists():
            made.tools.note_run()
        local = LocalInvoker({agent.name: agent}, dispatcher, dispatcher.timeouts)
        lookup.add(LocalLookup({agent.name: agent}, url), local)
        registries = Registries(home, named, notifications)
        yield Mesh(
            agent,
            dispatcher,
            lookup,
            directory,
            search,
            registries,
            http,
            made.prompts,
            made.tools,
            figures,
            peers,
            run_store,
        )


def _make_search(directory: Directory, texts: TextIndex | None) -> SkillSearch:
    """The search over the directory; it follows the changes of the directory."""
    search = SkillSearch(
        texts if texts is not None else MemoryTextIndex(),
        directory.find_listing,
        find_entry=directory.find_entry,
        find_skill=directory.find_skill,
        eager=texts is not None,
    )
    directory.subscribe(lambda change: search.note(change.entry.id))
    return search


def _make_caller(
    dispatcher: Dispatcher, lookup: LocalFirst, directory: Directory, track: TrackRecord
) -> DispatchCaller:
    """How runs call agents."""
    return DispatchCaller(
        dispatcher,
        lookup,
        dispatcher.admission.guard,
        agent=HUB_NAME,
        directory=directory,
        strategy=dispatcher.strategy,
        access=dispatcher.access,
        track=track,
    )


def _make_dispatcher(
    settings: Settings, directory: Directory, lookup: LocalFirst, peers: Peers, hub_id: str | None
) -> Dispatcher:
    guard = TraceGuard(guard_settings(settings.trace), hub_id=hub_id, signer=peers.signer)
    agent_stats = AgentStatsTable()
    return Dispatcher(
        agent=HUB_NAME,
        lookup=lookup,
        invoker_of=lookup.invoker_of,
        admission=Admission(guard, Limits(limit_settings(settings.limits)), EventBus()),
        agent_stats=agent_stats,
        health_sink=directory.record_health,
        timeouts=timeout_settings(settings.timeouts),
        strategy=make_strategy(settings.routing.strategy, agent_stats),
        open_span=span_opener(HUB_NAME, environment()),
        access=hub_access(settings),
        queries=PeerQueries(peers.plain, lookup.is_peer),
    )


class LazyRuns:
    """Lazily opened durable runs: importing DBOS takes longer than most commands.

    Runs are stored in the state folder or in the configured database. A process has one instance.
    """

    def __init__(self, settings: Settings, state: State) -> None:
        self.store = RunStore(settings.database, state.runs)
        """Where the runs are stored."""
        self._options = settings.runs
        self._nodes = state.nodes
        self._asked = asyncio.Event()
        self._runs = Lazy(self._executing)
        self._body: Body

    @asynccontextmanager
    async def open(self, body: Body) -> AsyncIterator[Runs]:
        """Runs that execute ``body``; on leaving they are closed, and another process resumes them."""
        self._body = body
        opened_by_call = _OpenedByCall(self._runs, self._open)
        try:
            yield cast(Runs, opened_by_call)
        finally:
            await self._runs.aclose()
            opened_by_call.forget()

    async def launch(self, echo: Callable[[str], None], *, refuse_full: bool = False) -> None:
        """Start to execute runs when the database answers; prints one line if it does not.

        With ``refuse_full`` raises StorageFullError if the disk is full at the first attempt.

        A state without runs has none to take over: DBOS, 30 MB, is loaded once a run is asked for here or
        another process has stored one.
        """
        while not self.store.exists():
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._asked.wait()
                    break
        is_reported = False
        while True:
            try:
                await (await self._open()).launch()
            except StateError as error:
                if is_reported:
                    _log.debug("workflows do not run", error=error.message)
                elif refuse_full and isinstance(error, StorageFullError):
                    raise
                else:
                    echo(f"workflows are paused: {error.message}; {error.remedy}")
                    is_reported = True
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def read_figures(self) -> RunFigures | None:
        """What is known of the runs and their database; None where this process has opened none."""
        return None if self._runs.made is None else await self._runs.made.read_figures()

    async def list_nodes(self) -> Sequence[RunNode]:
        """The living nodes of the database, as this process last read them."""
        figures = await self.read_figures()
        if figures is None:
            return ()
        return [
            RunNode(node.executor, node.running, node.executor == figures.own_node) for node in figures.nodes
        ]

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
            ),
        )
        # what the import made lives as long as the process; each full collection would take 0.1 s
        gc.freeze()
        try:
            yield runs
        finally:
            await runs.aclose()


class _OpenedByCall:
    """`Runs` whose methods open the durable runs first."""

    def __init__(self, runs: Lazy[DurableRuns], open_runs: Callable[[], Awaitable[Runs]]) -> None:
        self._runs = runs
        self._open_runs = open_runs

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name not in vars(Runs):
            raise AttributeError(f"runs have no {name!r}")
        if self._runs.made is not None:
            opened: Callable[..., Awaitable[Any]] = getattr(self._runs.made, name)
            setattr(self, name, opened)  # from now on it is found here
            return opened

        async def call(*arguments: Any, **options: Any) -> Any:
            return await getattr(await self._open_runs(), name)(*arguments, **options)

        return call

    def forget(self) -> None:
        """Look the methods up again, because the runs are closed."""
        for name in vars(Runs).keys() & vars(self).keys():
            delattr(self, name)

    async def follow(self, run_id: str, *, after: int = 0) -> AsyncIterator[RunEvent]:
        async for event in (await self._open_runs()).follow(run_id, after=after):
            yield event
