"""The protocols of hub and agents as parts: what each opens, and the rank of its routes."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from retinue.ard.codec.catalog import Publisher
from retinue.ard.federation import Upstreams
from retinue.ard.server import DiscoveryEndpoint
from retinue.core.record import HUB_NAME
from retinue.hub.messages import add_message_skill
from retinue.mesh.directory.directory import Directory
from retinue.mesh.search.ranking import SkillSearch
from retinue.oci.server import pull as oci
from retinue.oci.server.webhooks import hook_route
from retinue.parts.part import Kind, Opened, Part
from retinue.parts.process import Process

from retinue.rpc.server import execute_route, health_route
from retinue.runtime.access import protected_resource
from retinue.runtime.endpoints.a2a import open_a2a
from retinue.runtime.endpoints.cards import card_routes
from retinue.runtime.endpoints.dashboard import make_dashboard
from retinue.runtime.endpoints.mcp import open_agent_mcp, open_hub_mcp
from retinue.runtime.endpoints.registry import hook_tokens, shown_repositories
from retinue.runtime.endpoints.rest import rest_route
from retinue.runtime.factories import public_card_key
from retinue.runtime.importing.imports import Imports
from retinue.runtime.mesh import Registries
from retinue.runtime.messages import MessageCalls, Messages, make_messages
from retinue.runtime.process_state import ProcessState
from retinue.settings import Settings
from retinue.settings_tables import DiscoveryTable, ExecuteTable
from retinue.web.rejections import keys_route, metadata_routes

_SERVING = frozenset[Kind]({"hub", "agent"})


class McpPart(Part):
    """MCP: the endpoint of the process's agent, and at a hub one for every agent."""

    name = "mcp"
    kinds = frozenset({"hub", "agent", "stdio"})
    rank = 10
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        opening = open_hub_mcp(process) if process.kind == "hub" else open_agent_mcp(process)
        async with opening as endpoints:
            yield Opened(product=endpoints, routes=endpoints.routes, drain=endpoints.end)


class ExecutePart(Part):
    """JSON-RPC at ``/execute``, and at a hub for every agent."""

    name = "execute"
    kinds = _SERVING
    rank = 20
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        table = process.tables.get(ExecuteTable)
        route = partial(
            execute_route,
            process.dispatcher,
            answer_without_id=table.answer_without_id,
            validation_code=table.validation_code,
        )
        if process.kind == "hub":
            yield Opened(routes=(route(path="/agents/{agent}/execute"), route()))
        else:
            yield Opened(routes=(route(agent=process.agent.name),))


class MessagesPart(Part):
    """Performative messages: their endpoint, and calls of agents that take messages alone."""

    name = "messages"
    kinds = frozenset({"hub", "agent", "worker", "command"})
    gives = Messages
    rank = 30
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        messages = make_messages(
            process.dispatcher, process.shown, process.tables.get(Settings), process.state
        )
        try:
            if process.kind in _SERVING:
                await messages.recover()
            calls = MessageCalls(process.http, process.signer, process.token_for, messages)
            is_hub = process.agent.name == HUB_NAME and process.kind != "agent"
            yield Opened(
                product=messages,
                routes=messages.routes if process.kind in _SERVING else (),
                protocols={"messages": calls},
                skills=partial(add_message_skill, send=messages.answer_in) if is_hub else None,
            )
        finally:
            await messages.aclose()


class A2aPart(Part):
    """A2A: JSON-RPC and cards of the process's agent, and at a hub of every agent."""

    name = "a2a"
    kinds = _SERVING
    needs = (Messages,)
    rank = 40
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        opening = open_a2a(
            process.dispatcher,
            process.shown,
            process.tables.get(Settings),
            process.state,
            process.url or "",
            process.get(Messages).answer_envelope,
        )
        async with opening as endpoints:
            yield Opened(routes=endpoints.routes, drain=endpoints.end)


class CardPart(Part):
    """The pallet card of the process's agent, and at a hub of every agent."""

    name = "card"
    kinds = _SERVING
    rank = 50
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        yield Opened(routes=card_routes(process.shown))


class RestPart(Part):
    """The REST routes for tools and resources."""

    name = "rest"
    kinds = _SERVING
    rank = 60
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        yield Opened(routes=(rest_route(process),))


class ProbesPart(Part):
    """Probes, metrics, the keys of cards and the metadata of the authorization server."""

    name = "probes"
    kinds = frozenset({"hub", "agent", "worker"})
    rank = 70
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        settings = process.tables.get(Settings)
        keys = keys_route(partial(public_card_key, settings, process.state))
        yield Opened(
            routes=(
                health_route(),
                *process.get(ProcessState).routes(),
                *(() if process.kind == "worker" else (keys,)),
                *metadata_routes(protected_resource(settings)),
            )
        )


class DiscoveryPart(Part):
    """Agentic Resource Discovery; the id of the registry is another one in each process."""

    name = "discovery"
    kinds = frozenset({"hub"})
    rank = 80
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        table = process.tables.get(DiscoveryTable)
        upstreams = Upstreams(
            process.http,
            table.upstreams,
            f"ard-{uuid.uuid4().hex[:16]}",
            timeout_s=table.timeout_s,
            max_hops=table.max_hops,
        )
        publisher = Publisher(table.publisher, table.name, (process.url or "").rstrip("/"))
        endpoint = DiscoveryEndpoint(
            process.get(Directory), process.get(SkillSearch), process.dispatcher.access, publisher, upstreams
        )
        yield Opened(routes=endpoint.routes())


class RegistryPart(Part):
    """The registry of the state folder at ``/v2``, and the webhooks of other registries."""

    name = "registry"
    kinds = frozenset({"hub"})
    rank = 90
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        registries = process.get(Registries)
        shown = shown_repositories(process.get(Directory), process.dispatcher.access)
        yield Opened(
            routes=(
                hook_route(registries.notifications.take),
                *oci.routes(registries.home, registries.home, shown),
            ),
            tokens=hook_tokens(process.tables.get(Settings), process.environ),
        )


class DashboardPart(Part):
    """The pages for browsers, and their sessions in front of the security checks."""

    name = "dashboard"
    kinds = frozenset({"hub"})
    needs = (Imports,)
    rank = 900
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        settings = process.tables.get(Settings)
        dashboard = make_dashboard(process, settings)
        yield Opened(routes=dashboard.routes, in_front=dashboard.in_front_of, drain=dashboard.end)
