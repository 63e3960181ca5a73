"""The servers of seed 003: ``AgentRegistryServer`` of a coordinator, ``AgentPersonalityServer`` of an agent.

Each serves the REST routes of the seed, and the same over real MCP at ``/mcp`` (specification 4,
doubt 8). ``app`` is an ASGI app behind the checks of `web.security`. A server needs its ``running()``
entered, which the lifespan of ``app`` does where a server such as uvicorn runs one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.routing import BaseRoute, Router
from starlette.types import ASGIApp

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.authoring.local import LocalFirst, LocalInvoker, LocalLookup, local_dispatcher, local_reader
from retinue.cards.personality_profile import ShownPersonality
from retinue.core.call import Principal
from retinue.core.errors import UnknownAgentError
from retinue.mcp.server.hub_offer import HubOffer
from retinue.mcp.server.lazy_server import lazy_server, mcp_route
from retinue.mcp.server.offer import RecordOffer
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.permissions import is_seen
from retinue.parts.lazy import Lazy
from retinue.rest.endpoints import PREFIXES, agent_routes, registry_routes
from retinue.rpc.client import PeerInvoker
from retinue.rpc.server import execute_route, health_route
from retinue.web.http_client import HttpClient
from retinue.web.security import SecurityMiddleware
from retinue_koi.adapter import MCPAdapter
from retinue_koi.client import TraitInvoker
from retinue_koi.codec.personality import PersonalityProfile
from retinue_koi.codec.profile_records import show_profile, shown_personality
from retinue_koi.programs.personality_agent import Functions, PersonalityAgent
from retinue_koi.source import KOI_SOURCE, PersonalitySource

if TYPE_CHECKING:
    from retinue.mcp.server.endpoint import McpServer

Guard = Callable[[ASGIApp], ASGIApp]
"""Puts an app behind the checks of its requests."""

INSTRUCTIONS = (
    "The agents of a KOI network. Their tools are named <agent>__<tool>; the resource agent:<name> is the "
    "personality of one agent."
)


class _Server:
    """The common part of both servers: a port, an app, and the work while it serves."""

    def __init__(self, port: int, guard: Guard | None) -> None:
        self.port = port
        self.mcp: Lazy[McpServer]
        self._guard = guard or SecurityMiddleware
        self._routes: list[BaseRoute] = []
        self.is_running = False
        """Whether ``running()`` is entered, so that a caller serves ``app``."""
        self.is_guarded = guard is not None
        """Whether a guard of the caller checks the requests."""
        self._more: list[Callable[[], AbstractAsyncContextManager[Any]]] = []
        self.app: ASGIApp = self._guard(Router(routes=self._routes, lifespan=self._lifespan))

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """The routes of the server, with those that were added."""
        return tuple(self._routes)

    def add_routes(self, routes: Iterable[BaseRoute]) -> None:
        """Serve further routes at the same port, such as those of a KOI node."""
        self._routes.extend(routes)
        self.app = self._guard(Router(routes=self._routes, lifespan=self._lifespan))

    def run_with(self, opened: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        """Enter this too wherever the lifespan of ``app`` starts the server, such as the start of a node."""
        self._more.append(opened)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve while inside; leaving ends every MCP session."""
        async with AsyncExitStack() as stack:
            self.is_running = True
            await self._open(stack)
            stack.push_async_callback(self.mcp.aclose)
            try:
                yield
            finally:
                self.is_running = False

    async def _open(self, stack: AsyncExitStack) -> None:
        """Open what the server needs besides MCP."""

    @asynccontextmanager
    async def _lifespan(self, app: Any) -> AsyncIterator[None]:
        if self.is_running:
            yield
            return
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.running())
            for opened in self._more:
                await stack.enter_async_context(opened())
            yield


class AgentPersonalityServer(_Server):
    """Serves one agent: its personality as a resource, its callable traits as tools (K-22).

    ``agent`` is the agent of the profile; by default one whose callable traits run ``functions``.
    ``dispatcher`` runs its calls, by default one of its own. ``read_profile`` gives the profile as callers
    with these scopes see it.
    """

    def __init__(
        self,
        port: int,
        personality: PersonalityProfile,
        *,
        functions: Functions | None = None,
        guard: Guard | None = None,
    ) -> None:
        super().__init__(port, guard)
        self.personality = personality
        agent = self.agent = PersonalityAgent(personality, functions)
        dispatcher = self.dispatcher = local_dispatcher(agent)
        offer = RecordOffer(lambda: agent.record(with_facts=True), agent.changes.subscribe, dispatcher.access)
        self.mcp = lazy_server(offer, dispatcher, local_reader(agent, dispatcher))

        async def find_personality(caller: Principal, name: str | None) -> ShownPersonality | None:
            if not is_seen(dispatcher.access.view_of(caller), agent.name):
                return None
            return shown_personality(show_profile(self.personality, caller.scopes))

        self.add_routes(
            (
                *agent_routes(find_personality, dispatcher, takes_arguments=agent.is_bound),
                execute_route(dispatcher, agent=agent.name),
                health_route(),
                mcp_route(self.mcp),
            )
        )


class AgentRegistryServer(_Server):
    """Serves the personalities of an adapter: as resources, and their callable traits as tools (K-21).

    Over MCP the tools are called as well: the call goes to the agent. ``root_path`` is a further prefix of
    the REST routes. With ``allow_private``, agents at private addresses are called.
    """

    def __init__(
        self,
        port: int,
        adapter: MCPAdapter,
        root_path: str | None = None,
        *,
        name: str = "koi-mcp-coordinator",
        guard: Guard | None = None,
        allow_private: bool = True,
    ) -> None:
        super().__init__(port, guard)
        self.adapter = adapter
        self.is_silent: Callable[[str], bool] = lambda rid: False
        """Whether the node with this RID does not answer; the list of agents marks its agents."""
        self._http = HttpClient(allow_private=allow_private)
        self._source = PersonalitySource(adapter)
        directory = self.directory = Directory(MemoryListings(), [self._source])
        agent = self.agent = _coordinator_agent(name, adapter)
        invoker = TraitInvoker(self._http, PeerInvoker(self._http))
        lookup = LocalFirst(directory, invoker)
        lookup.add_invoker(KOI_SOURCE, invoker)
        dispatcher = self.dispatcher = Dispatcher(
            agent=name, lookup=lookup, invoker_of=lookup.invoker_of, health_sink=directory.record_health
        )
        lookup.add(LocalLookup({name: agent}), LocalInvoker({name: agent}, dispatcher, dispatcher.timeouts))
        offer = HubOffer(
            lambda: agent.record(with_facts=True),
            agent.changes.subscribe,
            directory,
            dispatcher.access,
            instructions=INSTRUCTIONS,
        )
        self.mcp = lazy_server(offer, dispatcher, local_reader(agent, dispatcher, dispatcher))

        async def list_personalities(caller: Principal) -> Sequence[ShownPersonality]:
            view = dispatcher.access.view_of(caller)
            seen = [profile for name, profile in adapter.agents.items() if is_seen(view, name)]
            return [
                replace(
                    shown_personality(show_profile(profile, caller.scopes)),
                    is_away=self.is_silent(str(profile.node_rid)),
                )
                for profile in seen
            ]

        prefixes = dict.fromkeys((*PREFIXES, *([root_path.rstrip("/")] if root_path else ())))
        self.add_routes(
            (
                *registry_routes(list_personalities, prefixes=prefixes),
                execute_route(dispatcher),
                health_route(),
                mcp_route(self.mcp, ensure_fresh=directory.ensure_fresh),
            )
        )

    async def _open(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(self._http)
        stack.push_async_callback(self.directory.aclose)
        stack.callback(self._source.feed(self.directory))
        await self.directory.ensure_fresh()


def _coordinator_agent(name: str, adapter: MCPAdapter) -> Agent:
    """The coordinator's own agent, which has no skills; its resources are the personalities."""
    agent = Agent(name, description="Lists the agents of a KOI network.")

    @agent.resource("agent:{name}", name="agent", mime="application/json", expose=True)
    def read_personality(name: str, ctx: Context) -> Any:
        """The personality of an agent."""
        profile = adapter.get_agent(name)
        if profile is None:
            raise UnknownAgentError(name)
        return shown_personality(show_profile(profile, ctx.principal.scopes)).content

    @agent.completes("agent:{name}", "name")
    def complete_name(value: str) -> list[str]:
        return sorted(name for name in adapter.agents if name.startswith(value))

    return agent
