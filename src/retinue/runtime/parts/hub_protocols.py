"""The protocols and pages of a hub alone, as parts."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from retinue.ard.codec.catalog import Publisher
from retinue.ard.federation import Upstreams
from retinue.ard.server import DiscoveryEndpoint
from retinue.dashboard.team_pages import KnownTeams
from retinue.mcp.upstream.imports.reads import ServersInHub
from retinue.mesh.directory.directory import Directory
from retinue.mesh.search.ranking import SkillSearch
from retinue.oci.server import pull as oci
from retinue.oci.server.webhooks import HOOK_PATH, hook_route
from retinue.parts.part import Opened, Part
from retinue.parts.process import Process
from retinue.runtime.endpoints.agent_mcp import McpEndpoints
from retinue.runtime.endpoints.dashboard import make_dashboard
from retinue.runtime.endpoints.mcp import open_hub_mcp
from retinue.runtime.endpoints.registry import hook_tokens, shown_repositories
from retinue.runtime.imports.connections import Imports
from retinue.runtime.mesh import Registries
from retinue.runtime.parts.mcp import MCP_RANK
from retinue.runtime.parts.policies import check_publish
from retinue.settings_tables import AuthTable, DiscoveryTable, HookTable
from retinue.storage.run_store import RunStore
from retinue.storage.state import State
from retinue.web.issued_tokens import TokenFile
from retinue.web.registry_tokens import RegistryTokens
from retinue.web.rejections import REGISTRY_PATH


class HubMcpPart(Part):
    """MCP: the endpoint of the hub, and one for every agent."""

    name = "mcp"
    kinds = frozenset({"hub"})
    needs = (Imports,)
    gives = McpEndpoints
    rank = MCP_RANK
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        servers = process.get(Imports).servers
        imported = ServersInHub(servers, process.get(Directory), process.dispatcher)
        async with open_hub_mcp(process, imported) as endpoints:
            yield Opened(product=endpoints, routes=endpoints.routes, drain=endpoints.end)


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
        is_member = TokenFile(process.state.keys).identifies
        tokens = RegistryTokens(process.state.mesh_key(), process.tables.get(AuthTable).resource)
        yield Opened(
            routes=(
                hook_route(registries.notifications.take),
                *oci.routes(
                    registries.home,
                    registries.home,
                    shown,
                    is_member=is_member,
                    tokens=tokens,
                    check_publish=partial(check_publish, process),
                ),
            ),
            any_media_type=(REGISTRY_PATH, HOOK_PATH),
            tokens=hook_tokens(process.tables.get(HookTable), process.environ),
            on_checks=lambda checks: checks.accept_registry_tokens(tokens),
        )


class DashboardPart(Part):
    """The pages for browsers, and their sessions in front of the security checks.

    ``find_teams`` gives the digests of the teams of a state, for the page of teams.
    """

    name = "dashboard"
    kinds = frozenset({"hub"})
    rank = 900
    is_required = True

    def __init__(self, find_teams: Callable[[State], KnownTeams] | None = None) -> None:
        self._find_teams = find_teams

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        teams = None if self._find_teams is None else self._find_teams(process.state)
        dashboard = make_dashboard(process, process.get(RunStore), teams)
        yield Opened(
            routes=dashboard.routes,
            open_prefixes=dashboard.open_prefixes,
            any_media_type=dashboard.form_prefixes,
            on_checks=dashboard.take_checks,
            drain=dashboard.end,
        )
