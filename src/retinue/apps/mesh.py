"""The mesh as one process sees it: registries, directory, the hub's agent and the path to all of them.

The hub composes it with a store and a door; a command without a hub composes it read-only, and runs
the same skills in its own process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version

from retinue.agents.hub import HUB_NAME, hub_agent
from retinue.agents.hub_reading import WorkflowPrompts
from retinue.apps.access import hub_access
from retinue.apps.late_runs import LateRuns
from retinue.apps.notified import Notifications
from retinue.apps.parts import (
    guard_settings,
    limit_settings,
    mesh_sources,
    named_registries,
    open_shelves,
    registry_sources,
    timeout_settings,
)
from retinue.authoring.agent import Agent
from retinue.authoring.local import LOCAL_SOURCE, LocalFirst, LocalInvoker, LocalLookup
from retinue.core.record import Listing
from retinue.drivers.http import HttpClient
from retinue.drivers.layout import LayoutRegistry
from retinue.drivers.mcp_calls import AttendedInvoker
from retinue.drivers.mcp_peers import McpPeers
from retinue.drivers.mesh_bearer import MeshBearer
from retinue.drivers.mesh_signer import MeshSigner
from retinue.drivers.peers import PeerInvoker
from retinue.drivers.state import State
from retinue.drivers.telemetry import open_spans
from retinue.mesh.access import Access
from retinue.mesh.directory import Directory
from retinue.mesh.dispatch import Dispatcher, Invoker
from retinue.mesh.events import EventBus
from retinue.mesh.guards import TraceGuard
from retinue.mesh.lifting import Lifting
from retinue.mesh.limits import Limits
from retinue.mesh.listings import Listings
from retinue.mesh.pulse import Pulses
from retinue.mesh.routing import make_strategy
from retinue.mesh.search.ranking import SkillSearch
from retinue.mesh.search.text_index import MemoryTextIndex, TextIndex
from retinue.settings import Settings, environment
from retinue.workflows.dispatching import DispatchCaller
from retinue.workflows.interpreter.engine import Interpreter
from retinue.workflows.orchestrator import Orchestrator
from retinue.workflows.shelf import Library
from retinue.workflows.twin.runs import MemoryRuns


@dataclass(slots=True)
class Mesh:
    """The parts of one process's mesh; made by `open_mesh`."""

    agent: Agent
    dispatcher: Dispatcher
    directory: Directory
    home: LayoutRegistry
    http: HttpClient
    events: EventBus
    search: SkillSearch
    notifications: Notifications
    access: Access
    prompts: WorkflowPrompts
    mcp_peers: McpPeers
    runs: LateRuns | MemoryRuns


@asynccontextmanager
async def open_mesh(
    settings: Settings,
    state: State,
    listings: Listings,
    *,
    hub_id: str | None = None,
    url: str | None = None,
    texts: TextIndex | None = None,
    durable: bool = False,
) -> AsyncIterator[Mesh]:
    """Compose the mesh of ``state`` and the configured registries; closed on leaving.

    ``durable``: its runs survive this process; of such meshes a process has one.
    """
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(HttpClient(allow_private=settings.allow_private_urls))
        home = LayoutRegistry(state.registry)
        registries = named_registries(settings, home, http, state)
        directory = Directory(
            listings,
            registry_sources(settings, registries),
            ttl_s=settings.directory.ttl_s,
            amendment=Lifting(settings.hub.expose) if settings.hub.expose else None,
        )
        stack.push_async_callback(directory.aclose)
        notifications = Notifications(directory, registries)
        stack.push_async_callback(notifications.aclose)
        index: TextIndex = texts if texts is not None else MemoryTextIndex()
        search = SkillSearch(
            index,
            directory.find_listing,
            find_entry=directory.find_entry,
            find_skill=directory.find_skill,
            eager=texts is not None,
        )
        directory.subscribe(lambda change: search.note(change.entry.id))
        await search.synchronize([entry.id for entry in directory.list_held()])
        signer = MeshSigner.of(state)
        guard = TraceGuard(guard_settings(settings), hub_id=hub_id, signer=signer)
        events = EventBus()
        access = hub_access(settings)
        bearer = MeshBearer(state.mesh_key()).make
        of_mesh = mesh_sources(settings, state, registries)
        plain = PeerInvoker(http, signer=signer, mesh=of_mesh, bearer=bearer)
        mcp_peers = McpPeers(http, plain.token_for, signer)
        peers = AttendedInvoker(mcp_peers, plain)
        timeouts = timeout_settings(settings)
        pulses = Pulses()
        strategy = make_strategy(settings.routing.strategy, pulses)

        def invoker_of(listing: Listing) -> Invoker:
            return local if listing.source == LOCAL_SOURCE else peers

        lookup = LocalFirst(directory)
        dispatcher = Dispatcher(
            agent=HUB_NAME,
            lookup=lookup,
            invoker_of=invoker_of,
            guard=guard,
            limits=Limits(limit_settings(settings)),
            pulses=pulses,
            events=events,
            timeouts=timeouts,
            strategy=strategy,
            spans=open_spans(HUB_NAME, environment()),
            access=access,
        )
        caller = DispatchCaller(
            dispatcher, lookup, guard, agent=HUB_NAME, strategy=strategy, agents=directory
        )
        body = Interpreter(caller).run
        runs = LateRuns(body, settings, state) if durable else MemoryRuns(body, kept=settings.runs.keep)
        stack.push_async_callback(runs.aclose)
        library = Library(open_shelves(settings, state, registries))
        agent = hub_agent(
            directory,
            search,
            Orchestrator(runs),
            library,
            version=version("retinue"),
            stats_of=pulses.stats_of,
            access=access,
        )
        local = LocalInvoker({agent.name: agent}, dispatcher, timeouts)
        lookup.add(LocalLookup({agent.name: agent}, url))
        prompts = WorkflowPrompts(agent, library)
        yield Mesh(
            agent,
            dispatcher,
            directory,
            home,
            http,
            events,
            search,
            notifications,
            access,
            prompts,
            mcp_peers,
            runs,
        )
