"""The core of a process of a hub that answers calls beside the leader: no sources, no runs, no agents.

Of the skills of the hub it runs those that only hand a call on; the leader runs all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.metadata import version
from secrets import token_urlsafe
from typing import TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

from retinue.approvals.records import ApprovalStore
from retinue.authoring.agent import Agent
from retinue.authoring.local import LocalFirst, LocalInvoker, LocalLookup
from retinue.core.record import HUB_NAME, Candidate, Health
from retinue.hub.agents import add_call_skills
from retinue.mcp.server.shared_sessions import (
    CANCELLED,
    ENDED,
    OPENED,
    SESSIONS,
    USED,
    FollowedSessions,
    LedSessions,
)
from retinue.mesh.directory.directory import Directory
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.observing.access_rows import AccessRows
from retinue.mesh.observing.metrics import Figures
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.parts.part import Opened, Part
from retinue.parts.process import Process
from retinue.parts.shown_agents import MeshAgents
from retinue.policies.counts import CallCounts
from retinue.rpc.server import health_route
from retinue.runtime.endpoints.a2a import SharedTasks, open_a2a
from retinue.runtime.endpoints.agent_mcp import McpEndpoints
from retinue.runtime.endpoints.mcp import SharedMcp, open_hub_mcp
from retinue.runtime.factories import named_registries, registry_sources
from retinue.runtime.hub_processes.board import Board
from retinue.runtime.hub_processes.follower import DirectoryFollower, Leader, list_followed
from retinue.runtime.hub_processes.forwarding import Forwarder
from retinue.runtime.hub_processes.front import Reach
from retinue.runtime.hub_processes.leader import POLICIES, SEARCHES, send_json
from retinue.runtime.hub_processes.led_history import LedHistory
from retinue.runtime.hub_processes.led_policies import LedApprovals, LedCounts
from retinue.runtime.hub_processes.other_figures import list_digest_calls, make_process_mark, render_figures
from retinue.runtime.hub_processes.place import LEADER, HubPlace, make_task_id, own_names, owns_name
from retinue.runtime.launch import Start
from retinue.runtime.mesh import Chains, make_directory, make_dispatcher
from retinue.runtime.observing.process_state import ProcessState
from retinue.runtime.parts.audit import AuditLog, recording
from retinue.runtime.parts.mcp import MCP_RANK
from retinue.runtime.parts.policies import LedPolicies, LoadedPolicies
from retinue.runtime.parts.protocols import A2aPart
from retinue.runtime.peers import make_peers
from retinue.runtime.serving import ending
from retinue.storage.listing_store import SqliteListings
from retinue.web.http_client import HttpClient

T = TypeVar("T")


@asynccontextmanager
async def open_call_process(start: Start, place: HubPlace, board: Board) -> AsyncIterator[Process]:
    """The core of a process that answers calls: the directory of its leader, and a dispatcher."""
    settings, state = start.settings, start.state
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(HttpClient(allow_private=settings.allow_private_urls))
        forwarder = Forwarder(place)
        stack.push_async_callback(forwarder.aclose)
        store = SqliteListings(state.database, follows=True)
        stack.callback(store.close)
        leader = Leader(lambda: forwarder.session(LEADER))
        named = named_registries(settings, LayoutRegistry(state.registry), http, state)
        sources = list_followed(registry_sources(settings, named, state), leader, store)
        directory = make_directory(settings, store, sources)
        stack.push_async_callback(directory.aclose)
        peers = make_peers(settings, state, http, named)
        lookup = LocalFirst(directory, peers.remote)
        chains = Chains(place.hub_id, own_names(place), board.take, board.note_in_flight)
        dispatcher = make_dispatcher(settings, directory, lookup, peers, chains)
        _share_health(dispatcher, directory, leader)
        stack.callback(dispatcher.admission.events.flush)
        # a client sees name, version and title of the hub, whichever process answers
        agent = Agent(HUB_NAME, version=version("retinue"), title="Retinue")
        history = leader.history = LedHistory(dispatcher.admission.events)
        add_call_skills(agent, directory, dispatcher.access, history.expect)
        own = {agent.name: agent}
        lookup.add(LocalLookup(own, start.url), LocalInvoker(own, dispatcher, dispatcher.timeouts))
        shown = MeshAgents(agent, dispatcher.access, start.url, directory)
        process = start.make_process("hub", agent, dispatcher, shown, peers, lookup)
        follower = DirectoryFollower(
            directory, store, dispatcher.agent_stats, lambda: forwarder.session(LEADER)
        )
        sessions, agreement = FollowedSessions(), Agreement()
        follower.on_news |= {SEARCHES: history.watch, POLICIES: agreement.note_leader}
        _follow_sessions(follower, sessions)
        reach = Reach(
            directory,
            dispatcher,
            [s.name for s in sources],
            lambda: follower.is_current.is_set() and agreement.is_reached,
            lambda: follower.own_skills,
            exams_required=settings.exam.policy == "require",
            sessions=sessions,
            asks_people=lambda: agreement.asks_people,
        )
        for product in (
            directory,
            forwarder,
            leader,
            follower,
            reach,
            sessions,
            _shared_mcp(place, forwarder, leader, sessions),
            SharedTasks(own_names(place, make_task_id), partial(owns_name, place), leads=False),
            agreement,
            _led_policies(leader),
            peers.mcp_client,
        ):
            process.products[type(product)] = product
        yield process


def _share_health(dispatcher: Dispatcher, directory: Directory, leader: Leader) -> None:
    """Have the leader learn what the calls of this process tell of the health of agents."""

    def note_health(candidate: Candidate, health: Health, reason: str) -> None:
        directory.record_health(candidate, health, reason)
        is_open = dispatcher.agent_stats.of(candidate).is_broken
        leader.note_health(candidate, health, reason, is_open=is_open)

    dispatcher.health_sink = note_health


def _follow_sessions(follower: DirectoryFollower, sessions: FollowedSessions) -> None:
    """Have the MCP sessions of this process be those of the leader."""
    follower.on_news |= {
        SESSIONS: sessions.replace,
        OPENED: sessions.open,
        ENDED: sessions.end,
        CANCELLED: lambda request: sessions.cancel(*request),
    }


def _shared_mcp(
    place: HubPlace, forwarder: Forwarder, leader: Leader, sessions: FollowedSessions
) -> SharedMcp:
    """What the MCP servers of this process share with those of the leader."""
    return SharedMcp(
        make_state=own_names(place, token_urlsafe),
        led=LedSessions(sessions, partial(forwarder.forward, LEADER)),
        send_result=leader.send_result,
    )


def _led_policies(leader: Leader) -> LedPolicies:
    """How policies of this process ask the leader for approvals and for counts of calls."""
    counts: CallCounts = LedCounts(leader)
    approvals: ApprovalStore = LedApprovals(leader)
    return LedPolicies(partial(_opened, approvals), partial(_opened, counts), leader.append_inputs)


async def _opened(store: T) -> T:
    return store


class Agreement:
    """Whether the policies of this process are those of the leader; until then the leader decides."""

    def __init__(self) -> None:
        self._of_leader: Sequence[str] = ()
        self._loaded: LoadedPolicies | None = None
        self.is_reached = False

    def follow(self, loaded: LoadedPolicies) -> None:
        """Compare these policies from now on."""
        self._loaded = loaded
        loaded.on_loaded = self._compare
        self._compare()

    def note_leader(self, described: Sequence[str]) -> None:
        """Take what the leader has in force, and load the same policies at once."""
        self._of_leader = described
        self._compare()
        if self._loaded is not None and not self.is_reached:
            self._loaded.look_soon()

    @property
    def asks_people(self) -> bool:
        """Whether a policy may ask a person."""
        return self._loaded is not None and self._loaded.asks_people

    def _compare(self) -> None:
        self.is_reached = self._loaded is not None and self._loaded.describe() == self._of_leader


class LedMcpPart(Part):
    """MCP: calls of agents, at the endpoint of the hub and at those of agents."""

    name = "mcp"
    kinds = frozenset({"hub"})
    gives = McpEndpoints
    rank = MCP_RANK
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        making: list[asyncio.Task[object]] = []
        async with open_hub_mcp(process, None) as endpoints:

            def note_use(is_used: bool) -> None:
                if is_used and not making:
                    making.append(asyncio.create_task(endpoints.own.open(), name="MCP server"))

            process.get(DirectoryFollower).on_news[USED] = note_use
            yield Opened(product=endpoints, routes=endpoints.routes, drain=endpoints.end)


class LedA2aPart(Part):
    """A2A: the endpoints of agents; the leader has that of the hub, and answers envelopes."""

    name = "a2a"
    kinds = frozenset({"hub"})
    rank = A2aPart.rank
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        async with open_a2a(process) as endpoints:
            yield Opened(routes=endpoints.routes, drain=endpoints.end)


class HealthPart(Part):
    """``/health`` of a process that answers calls; everything else of a hub is answered by its leader."""

    name = "health"
    kinds = frozenset({"hub"})
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        yield Opened(routes=(health_route(),))


class FollowPart(Part):
    """Follows the leader: its directory comes from there, and audit rows and verdicts go there."""

    name = "hub-processes"
    kinds = frozenset({"hub"})
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        leader, follower = process.get(Leader), process.get(DirectoryFollower)
        log = AuditLog(leader.append_row)
        loaded = process.get(LoadedPolicies)
        process.get(Agreement).follow(loaded)
        leader.find_decisions = lambda: loaded.figures

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            touching = leader.touch_sessions(process.get(FollowedSessions))
            tasks = [
                asyncio.create_task(follower.run(), name="hub directory"),
                asyncio.create_task(leader.send_notes(), name="hub rows"),
                asyncio.create_task(touching, name="sessions in use"),
            ]
            async with ending(tasks):
                yield

        async def on_ready() -> None:
            await follower.is_current.wait()

        with recording(process, log):
            yield Opened(
                on_checks=lambda checks: checks.watch_access(AccessRows(leader.append_row).note),
                running=running,
                on_ready=on_ready,
            )
        await leader.flush()


def figures_app(process: Process) -> ASGIApp:
    """The exchange by which the leader reads the figures of this process."""
    mark = make_process_mark()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        figures = Figures()
        state = process.get(ProcessState)
        process.dispatcher.admission.events.flush()
        state.calls.read(figures)
        digests = list_digest_calls(process.dispatcher)
        await send_json(send, render_figures(figures, state.admission.limits.in_flight, digests, mark))

    return answer
