"""Composes the mesh of one process: registries, directory, dispatcher, workflow runs and the hub's agent.

The hub composes it with a store and endpoints. A command without a hub composes it read-only and runs the
same skills in its own process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version

from retinue.authoring.agent import Agent
from retinue.authoring.local import LocalFirst, LocalInvoker, LocalLookup
from retinue.core.call import Principal, new_id
from retinue.core.record import HUB_NAME
from retinue.flows.body import CodeBody, HostedWorkflows
from retinue.flows.modules import load_hosted
from retinue.hub.agents import find_relayed
from retinue.hub.drafts import StoreWorkflow
from retinue.hub.hub_agent import HubAgent, MeshView, Workflows, hub_agent
from retinue.hub.orchestration.agent_list import SpendingOf
from retinue.hub.orchestration.conversations import NamedConversations
from retinue.mesh.admission import Admission, NoteInFlight, ProcessLimits, TakeRate
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.kept_stats import keep_stats
from retinue.mesh.directory.listings import Listings
from retinue.mesh.directory.overrides import make_overrides
from retinue.mesh.directory.routing import make_strategy
from retinue.mesh.directory.sources import Source
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.exams import ExamBook
from retinue.mesh.guard.trace_guard import TraceGuard
from retinue.mesh.health.agent_stats import AgentStatsTable
from retinue.mesh.history.search_history import SearchHistory
from retinue.mesh.idempotency import OutcomeCache
from retinue.mesh.observing.call_figures import CallFigures, TrackRecord
from retinue.mesh.observing.events import EventBus
from retinue.mesh.permissions import Access
from retinue.mesh.search.ranking import SkillSearch
from retinue.mesh.search.text_index import MemoryTextIndex, TextIndex
from retinue.oci.codec.reference import workflow_repository
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import Registry, publish_workflow
from retinue.oci.server.webhooks import Notifications
from retinue.parts.process import Kind, Process
from retinue.parts.shown_agents import MeshAgents
from retinue.rpc.queries import PeerQueries
from retinue.runtime.access import hub_access
from retinue.runtime.factories import (
    HOME_SOURCE,
    guard_settings,
    limit_settings,
    named_registries,
    registry_sources,
    state_artifacts,
    timeout_settings,
)
from retinue.runtime.launch import Start
from retinue.runtime.observing.telemetry import span_opener
from retinue.runtime.peers import Peers, make_peers
from retinue.runtime.shelves import TeamShelf, open_shelves
from retinue.settings import Settings, environment
from retinue.storage.artifacts.state_artifacts import StateArtifacts
from retinue.storage.outcome_store import OutcomeStore
from retinue.storage.run_store import RunStore
from retinue.storage.state import State
from retinue.web.http_client import HttpClient
from retinue.workflows.caller import MemoryCache
from retinue.workflows.dispatch_caller import DispatchCaller
from retinue.workflows.interpreter.frame import Tools
from retinue.workflows.interpreter.step_loop import Interpreter
from retinue.workflows.library import Library, Shelf
from retinue.workflows.orchestrator import Orchestrator
from retinue.workflows.run_progress import RunProgress
from retinue.workflows.runs.hosting import HostedWorkflow
from retinue.workflows.runs.ports import Body, Runs


@dataclass(frozen=True, slots=True)
class Chains:
    """What several processes of one hub count together: chains of calls, rates of callers, calls in flight.

    ``hub_id`` names the hub in traces; None for a process that is no hub.
    """

    hub_id: str | None = None
    make_id: Callable[[], str] = new_id
    take_rate: TakeRate | None = None
    note_in_flight: NoteInFlight | None = None


OpenRuns = Callable[[Body, Sequence[HostedWorkflow]], AbstractAsyncContextManager[Runs]]
"""Opens the runs of a process, each of which executes the body."""

ALONE = Chains()
"""The counts of a process that shares none."""


@dataclass(slots=True)
class Mesh:
    """The core of a process that has a directory: what parts of it share; made by `open_mesh`."""

    hub: HubAgent
    dispatcher: Dispatcher
    lookup: LocalFirst
    directory: Directory
    search: SkillSearch
    history: SearchHistory
    exams: ExamBook
    registries: Registries
    figures: CallFigures
    peers: Peers
    hosted: HostedWorkflows
    artifacts: StateArtifacts

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

    def as_process(self, kind: Kind, start: Start) -> Process:
        """The mesh as its parts see it."""
        agent = self.hub.agent
        shown = MeshAgents(agent, self.access, start.url, self.directory)
        process = start.make_process(kind, agent, self.dispatcher, shown, self.peers, self.lookup)
        process.when_open = self.synchronize
        process.add(RunStore, RunStore(start.settings.database, start.state.runs))
        for product in (
            self.directory,
            self.search,
            self.history,
            self.exams,
            self.registries,
            self.hub.prompts,
            self.hub.tools,
            self.hub.starter,
            self.hub.text_skills,
            self.figures,
            self.peers.mcp_client,
            self.hosted,
            self.artifacts,
        ):
            process.products[type(product)] = product
        return process


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
    open_runs: OpenRuns,
    url: str | None = None,
    texts: TextIndex | None = None,
    spending_of: SpendingOf = lambda agent: None,
    chains: Chains = ALONE,
) -> AsyncIterator[Mesh]:
    """Compose the mesh of ``state`` and the configured registries; closed on leaving.

    Parts add further sources, invokers and skills; `SkillSearch.synchronize` follows them. ``spending_of``
    tells what a model agent has spent. Production code passes `LazyRuns.open` as ``open_runs``.
    """
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(HttpClient(allow_private=settings.allow_private_urls))
        directory, registries = await stack.enter_async_context(
            _open_directory(settings, state, listings, http)
        )
        search = _make_search(directory, texts)
        exams = ExamBook()
        history = SearchHistory(directory.find_skill, directory.find_named, list_named=directory.list_named)
        peers = make_peers(settings, state, http, registries.by_name)
        lookup = LocalFirst(directory, peers.remote)
        dispatcher = make_dispatcher(settings, directory, lookup, peers, chains)
        figures = _count_calls(dispatcher.admission.events)
        track = TrackRecord(figures, dispatcher.agent_stats)
        progress = RunProgress()
        caller = _make_caller(dispatcher, lookup, directory, search, history, exams, track, progress)
        artifacts = state_artifacts(settings, state, http)
        stack.callback(artifacts.close)
        shelves = open_shelves(settings, state, registries.by_name, own=HOME_SOURCE)
        hosted = load_hosted(settings.workflows.modules)
        engine = await stack.enter_async_context(
            _open_engine(hosted, shelves, TeamShelf(state), caller, artifacts, open_runs, dispatcher.access)
        )
        view = MeshView(
            directory=directory,
            lookup=lookup,
            search=search,
            history=history,
            exams=exams,
            caller=caller,
            track=track,
            access=dispatcher.access,
            spending_of=spending_of,
        )
        hub = hub_agent(
            view,
            _hub_workflows(engine, progress, registries.home, dispatcher.access),
            NamedConversations(state.read_session, state.write_session),
            version=version("retinue"),
        )
        if RunStore(settings.database, state.runs).exists():
            hub.tools.note_run()
        stack.enter_context(_local_agent(hub.agent, state, dispatcher, lookup, artifacts, url))
        yield Mesh(
            hub,
            dispatcher,
            lookup,
            directory,
            search,
            history,
            exams,
            registries,
            figures,
            peers,
            hosted,
            artifacts,
        )


@asynccontextmanager
async def _open_directory(
    settings: Settings, state: State, listings: Listings, http: HttpClient
) -> AsyncIterator[tuple[Directory, Registries]]:
    """The registries, and the directory of the agents in them; their tasks end on leaving."""
    home = LayoutRegistry(state.registry)
    named = named_registries(settings, home, http, state)
    directory = make_directory(settings, listings, registry_sources(settings, named, state))
    notifications = Notifications(directory, named)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(directory.aclose)
        stack.push_async_callback(notifications.aclose)
        yield directory, Registries(home, named, notifications)


@dataclass(frozen=True, slots=True)
class _Engine:
    """The library, the runs and the cache of steps of this process."""

    library: Library
    runs: Runs
    step_cache: MemoryCache


@asynccontextmanager
async def _open_engine(
    hosted: HostedWorkflows,
    shelves: Sequence[Shelf],
    teams: TeamShelf,
    caller: DispatchCaller,
    artifacts: StateArtifacts,
    open_runs: OpenRuns,
    access: Access,
) -> AsyncIterator[_Engine]:
    """The runs, whose body interprets the workflows of ``shelves``, of ``teams`` and those in Python."""
    # a kept result would answer a call about which policies decide anew
    step_cache = MemoryCache(is_closed=lambda: access.has_policies)
    tools = Tools(
        caller,
        step_cache,
        artifacts=artifacts,
        open_approvals=lambda: runs.open_approvals(),
        open_sessions=lambda: runs.open_sessions(),
        check_start=partial(access.check_start, is_inline=False),
    )
    library = Library(shelves, code=hosted.list_loaded(), list_hosted=lambda: runs.list_hosted(), teams=teams)
    interpreter = Interpreter(tools, code=CodeBody(hosted, tools, library).run)
    async with open_runs(interpreter.run, hosted.list_hosted()) as runs:
        yield _Engine(library, runs, step_cache)


def _hub_workflows(engine: _Engine, progress: RunProgress, home: LayoutRegistry, access: Access) -> Workflows:
    """The workflows as the hub's agent shows them; it stores new ones in the registry of the state."""
    return Workflows(
        orchestrator=Orchestrator(engine.runs),
        library=engine.library,
        clear_steps=engine.step_cache.clear,
        progress=progress,
        store=_storing(home, access),
    )


def _storing(home: LayoutRegistry, access: Access) -> StoreWorkflow:
    """How workflows are stored in the registry of the state, where policies let a principal publish them."""

    async def store(principal: Principal, name: str, text: bytes) -> str:
        access.check_publish(principal, workflow_repository(name))
        published = await publish_workflow(home, name, text, created=datetime.now(UTC))
        return f"{published.repository}:{published.tag}"

    return store


@contextmanager
def _local_agent(
    agent: Agent,
    state: State,
    dispatcher: Dispatcher,
    lookup: LocalFirst,
    artifacts: StateArtifacts,
    url: str | None,
) -> Iterator[None]:
    """Have the calls of the hub's own skills run here; their outcomes by key are closed on leaving."""
    stored = OutcomeStore(state, agent.name)
    try:
        outcomes = OutcomeCache(stored=stored)
        local = LocalInvoker(
            {agent.name: agent}, dispatcher, dispatcher.timeouts, outcomes, artifacts=artifacts
        )
        lookup.add(LocalLookup({agent.name: agent}, url), local)
        yield
    finally:
        stored.close()


def make_directory(settings: Settings, listings: Listings, sources: Sequence[Source]) -> Directory:
    """The directory of these sources, with what the owner says of their skills."""
    overrides = make_overrides(settings.hub.expose, settings.owners_hints)
    return Directory(listings, sources, ttl_s=settings.directory.ttl_s, overrides=overrides)


def _count_calls(events: EventBus) -> CallFigures:
    """The figures of the calls that these events tell of."""
    figures = CallFigures(catch_up=events.flush)
    events.subscribe_later(figures.observe)
    return figures


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
    dispatcher: Dispatcher,
    lookup: LocalFirst,
    directory: Directory,
    search: SkillSearch,
    history: SearchHistory,
    exams: ExamBook,
    track: TrackRecord,
    progress: RunProgress,
) -> DispatchCaller:
    """How runs call agents."""
    return DispatchCaller(
        dispatcher,
        lookup,
        dispatcher.admission,
        agent=HUB_NAME,
        directory=directory,
        strategy=dispatcher.strategy,
        access=dispatcher.access,
        track=track,
        progress=progress,
        search=search,
        history=history,
        exams=exams,
    )


def make_dispatcher(
    settings: Settings,
    directory: Directory,
    lookup: LocalFirst,
    peers: Peers,
    chains: Chains = ALONE,
) -> Dispatcher:
    """The dispatcher of a process that has a directory."""
    guard = TraceGuard(
        guard_settings(settings.trace),
        hub_id=chains.hub_id,
        signer=peers.signer,
        make_id=chains.make_id,
    )
    limits = ProcessLimits(
        limit_settings(settings.limits), take_rate=chains.take_rate, note_in_flight=chains.note_in_flight
    )
    agent_stats = keep_stats(directory, AgentStatsTable())
    return Dispatcher(
        agent=HUB_NAME,
        lookup=lookup,
        invoker_of=lookup.invoker_of,
        admission=Admission(guard, limits, EventBus()),
        agent_stats=agent_stats,
        health_sink=directory.record_health,
        timeouts=timeout_settings(settings.timeouts),
        strategy=make_strategy(settings.routing.strategy, agent_stats),
        open_span=span_opener(HUB_NAME, environment()),
        access=hub_access(settings),
        queries=PeerQueries(peers.plain, lookup.is_peer),
        relayed_by=find_relayed,
    )
