"""Coordinator and agent of a KOI network as kinds of process: their core, and the part that serves."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from retinue.authoring.agent import Agent
from retinue.authoring.local import LocalFirst, LocalInvoker, LocalLookup
from retinue.mesh.dispatch import Dispatcher
from retinue.parts.part import Opened, Part
from retinue.parts.process import Kind, Process
from retinue.parts.shown_agents import OwnAgent
from retinue.runtime.access import behind_proxies
from retinue.runtime.factories import http_limits
from retinue.runtime.launch import Start, tables_of
from retinue.runtime.peers import make_peers
from retinue.runtime.serving import Stop, serving
from retinue.settings_tables import EndpointTable, LimitTable
from retinue.web.http_client import HttpClient
from retinue.web.security import SecurityMiddleware
from retinue_koi.peers import FirstContact
from retinue_koi.programs.config import AgentConfig, CoordinatorConfig, load_functions
from retinue_koi.programs.nodes import CoordinatorAdapterNode, KoiAgentNode
from retinue_koi.server import list_open_paths
from retinue_koi.table import KoiTable

COORDINATOR = "koi-coordinator"
AGENT = "koi-agent"
"""The kinds of process of the programs."""


@dataclass(frozen=True, slots=True)
class AgentProgram:
    """What an agent's process is made from; ``folder`` holds its configuration and functions."""

    section: AgentConfig
    first_contact: FirstContact | str | None
    folder: Path


class CoordinatorPart(Part):
    """Lists the personalities of the network over REST and MCP, in addition to the KOI endpoints."""

    name = "koi-coordinator"
    kinds = frozenset({COORDINATOR})
    needs = (CoordinatorAdapterNode,)
    is_required = True

    def __init__(self, section: CoordinatorConfig) -> None:
        self._section = section

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        coordinator = process.get(CoordinatorAdapterNode)
        server = coordinator.registry_server

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            known = len(coordinator.mcp_adapter.agents)
            rid = coordinator.node.rid
            process.echo(
                f"coordinator {self._section.name} at {process.url} ({known} agents known), RID {rid}"
            )
            yield

        async with server.running():
            # before it serves: what the cache holds is listed from the first request on
            await coordinator.start()
            try:
                yield Opened(
                    routes=server.routes,
                    open_paths=list_open_paths(self._section.trust),
                    running=running,
                    drain=server.mcp.end,
                )
            finally:
                await coordinator.stop()


class KoiAgentPart(Part):
    """Serves the agent's personality and tools, and joins the network once it answers."""

    name = "koi-agent"
    kinds = frozenset({AGENT})
    needs = (KoiAgentNode, Stop)
    is_required = True

    def __init__(self, section: AgentConfig, bind: Callable[[int], socket.socket]) -> None:
        self._section = section
        self._bind = bind

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        agent, server = process.get(KoiAgentNode), process.get(KoiAgentNode).mcp_server
        known_checks: list[SecurityMiddleware] = []

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            async with AsyncExitStack() as stack:
                koi_port = urlsplit(self._section.base_url).port
                if koi_port not in (None, self._section.mcp_port):
                    # a base_url of another port has to answer too (specification 4, doubt 7)
                    listener = self._bind(koi_port or 80)
                    await stack.enter_async_context(_serving(process, known_checks[0], listener))
                await agent.start()
                tools = [trait.name for trait in agent.profile.traits if trait.is_callable]
                place = f"{self._section.name} {self._section.version} at {agent.profile.mcp_url}"
                process.echo(f"{place}, tools: {', '.join(tools) or 'none'}")
                # it leaves the network while it still answers
                stack.push_async_callback(agent.stop)
                yield

        async with server.running():
            try:
                yield Opened(
                    routes=server.routes,
                    open_paths=list_open_paths(self._section.trust),
                    on_checks=known_checks.append,
                    running=running,
                    drain=server.mcp.end,
                )
            finally:
                await agent.stop()


@asynccontextmanager
async def open_coordinator(section: CoordinatorConfig, start: Start) -> AsyncIterator[Process]:
    """The core of a coordinator's process: its node."""
    base_url, port = place_of(section.base_url, section.mcp_registry_port, start)
    coordinator = CoordinatorAdapterNode(
        section.name,
        base_url,
        port,
        evict_after_s=tables_of(start.settings).get(KoiTable).evict_after_s,
        trust=section.trust,
        allow_private=start.settings.allow_private_urls,
    )
    server = coordinator.registry_server
    async with HttpClient(allow_private=start.settings.allow_private_urls) as http:
        process = _make_process(COORDINATOR, server.agent, server.dispatcher, http, start, coordinator.url)
        process.add(CoordinatorAdapterNode, coordinator)
        yield process


@asynccontextmanager
async def open_koi_agent(program: AgentProgram, start: Start) -> AsyncIterator[Process]:
    """The core of an agent's process: its node with the functions of its traits.

    Raises InvalidSettingError.
    """
    section = program.section
    functions = {}
    if section.functions is not None:
        functions = load_functions(section.functions, list(section.traits), program.folder)
    base_url, port = place_of(section.base_url, section.mcp_port, start)
    agent = KoiAgentNode(
        section.name,
        section.version,
        section.traits,
        base_url,
        port,
        program.first_contact,
        functions=functions,
        mcp_url=section.mcp_url,
        keep_on_stop=tables_of(start.settings).get(KoiTable).keep_on_stop,
        trust=section.trust,
        allow_private=start.settings.allow_private_urls,
    )
    server = agent.mcp_server
    async with HttpClient(allow_private=start.settings.allow_private_urls) as http:
        url = agent.profile.mcp_url
        process = _make_process(AGENT, server.agent, server.dispatcher, http, start, url)
        process.add(KoiAgentNode, agent)
        yield process


def place_of(base_url: str, port: int, start: Start) -> tuple[str, int]:
    """The base URL and the port; those of the listener where the configuration leaves the port open."""
    own_port = urlsplit(start.own_url or "").port or port
    parts = urlsplit(base_url)
    if port != 0:
        return base_url, own_port
    return parts._replace(netloc=f"{parts.hostname}:{own_port}").geturl(), own_port


def _make_process(
    kind: Kind, agent: Agent, dispatcher: Dispatcher, http: HttpClient, start: Start, url: str | None
) -> Process:
    peers = make_peers(start.settings, start.state, http, ())
    local = LocalLookup({agent.name: agent}, url)
    invokers = LocalFirst(local, peers.remote)
    invokers.add(local, LocalInvoker({agent.name: agent}, dispatcher, dispatcher.timeouts))
    shown = OwnAgent(agent, dispatcher.access, url)
    # the configuration of a node names its address
    here = replace(start, url=url, own_url=url)
    return here.make_process(kind, agent, dispatcher, shown, peers, invokers)


def _serving(
    process: Process, checks: SecurityMiddleware, listener: socket.socket
) -> AbstractAsyncContextManager[None]:
    app = behind_proxies(checks, process.tables.get(EndpointTable), "")
    return serving(app, listener, process.get(Stop), http_limits(process.tables.get(LimitTable)))
