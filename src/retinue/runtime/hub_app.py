"""The hub's ASGI application: its endpoints, those of every agent of its directory, and the registry."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from retinue.ard.codec.catalog import Publisher
from retinue.ard.federation import Upstreams
from retinue.ard.server import DiscoveryEndpoint
from retinue.core.call import Principal
from retinue.core.errors import InvalidSettingError
from retinue.mesh.directory.directory import Directory
from retinue.mesh.permissions import Access
from retinue.oci.server import pull as oci
from retinue.oci.server.pull import FindShown, IsShown
from retinue.oci.server.push import may_write
from retinue.oci.server.webhooks import HOOK_TOKEN, hook_route
from retinue.oci.source import WORKFLOWS
from retinue.rest.routes import rest_route
from retinue.rpc.server import execute_route, health_route
from retinue.runtime.access import OnChecks, guarded, protected_resource
from retinue.runtime.endpoints.a2a import A2aEndpoints
from retinue.runtime.endpoints.cards import card_routes
from retinue.runtime.endpoints.dashboard import HubDashboard
from retinue.runtime.endpoints.mcp import HubMcp
from retinue.runtime.factories import HOME_SOURCE, public_card_key
from retinue.runtime.mesh import Mesh
from retinue.runtime.process_state import ProcessState
from retinue.settings import Settings, environment
from retinue.storage.state import State
from retinue.web.fast.exact_paths import ExactPathRouter
from retinue.web.rejections import keys_route, metadata_routes
from retinue.web.security import SecurityMiddleware, identity_of


def hub_app(
    mesh: Mesh,
    settings: Settings,
    state: State,
    *,
    host: str,
    url: str,
    mcp: HubMcp | None = None,
    a2a: A2aEndpoints | None = None,
    dashboard: HubDashboard | None = None,
    process: ProcessState | None = None,
    koi_routes: Sequence[BaseRoute] = (),
    open_paths: frozenset[str] = frozenset(),
    on_checks: OnChecks = lambda checks: None,
) -> ASGIApp:
    """The hub's endpoints: its own, those of every agent under ``/agents/{agent}``, and the registry.

    With ``dashboard`` its pages as well, and their sessions in front of all checks.
    """
    execute = partial(
        execute_route,
        mesh.dispatcher,
        answer_without_id=settings.execute.answer_without_id,
        validation_code=settings.execute.validation_code,
    )

    app = ExactPathRouter(
        routes=[
            *(() if mcp is None else mcp.routes),
            execute(path="/agents/{agent}/execute"),
            execute(),
            *mesh.messages.routes,
            *(() if a2a is None else a2a.routes),
            *card_routes(mesh.shown),
            rest_route(mesh.dispatcher, mesh.shown, url),
            *koi_routes,
            health_route(),
            *(() if process is None else process.routes()),
            hook_route(mesh.notifications.take),
            keys_route(partial(public_card_key, settings, state)),
            *_discovery(mesh, settings, url).routes(),
            *metadata_routes(protected_resource(settings)),
            *oci.routes(mesh.home, mesh.home, shown_repositories(mesh.directory, mesh.access)),
            *(() if dashboard is None else dashboard.routes),
        ]
    )

    def with_sessions(checks: SecurityMiddleware) -> ASGIApp:
        return checks if dashboard is None else dashboard.in_front_of(checks)

    tokens = hook_tokens(settings)
    return guarded(
        app,
        settings,
        state,
        host,
        mesh.http,
        tokens,
        url=url,
        open_paths=open_paths,
        wrap=with_sessions,
        on_checks=on_checks,
    )


def _discovery(mesh: Mesh, settings: Settings, url: str) -> DiscoveryEndpoint:
    """The endpoints of ARD; the id of the registry is another one in each process."""
    table = settings.discovery
    upstreams = Upstreams(
        mesh.http,
        table.upstreams,
        f"ard-{uuid.uuid4().hex[:16]}",
        timeout_s=table.timeout_s,
        max_hops=table.max_hops,
    )
    publisher = Publisher(table.publisher, table.name, url.rstrip("/"))
    return DiscoveryEndpoint(mesh.directory, mesh.search, mesh.access, publisher, upstreams)


def hook_tokens(settings: Settings) -> dict[str, Principal]:
    """The configured token for registry webhooks, accepted besides the state's token.

    Raises InvalidSettingError if the environment variable is not set.
    """
    variable = settings.hooks.token_env
    if variable is None:
        return {}
    token = environment().get(variable, "").strip()
    if not token:
        raise InvalidSettingError(
            "hooks.token_env", f"the variable {variable} is not set", remedy=f"set {variable} to the token"
        )
    return {token: HOOK_TOKEN}


def shown_repositories(directory: Directory, access: Access) -> FindShown:
    """Shows all repositories to the mesh itself and to callers that see every agent.

    To the others it shows those whose agents they all see, and workflows. A card that the directory does not
    list, because it is too new or was refused, is hidden from them: nobody knows yet whose it is.
    """

    async def find_shown(request: Request) -> IsShown | None:
        view = access.view_of(identity_of(request.scope).principal)
        if view is None or may_write(request):
            return None
        await directory.ensure_fresh()
        agents: defaultdict[str, set[str]] = defaultdict(set)
        for entry in directory.list_held():
            if entry.source == HOME_SOURCE:
                agents[entry.key].add(entry.name)

        def is_shown(repository: str) -> bool:
            if repository in agents:
                return all(map(view, agents[repository]))
            return repository.startswith(WORKFLOWS)

        return is_shown

    return find_shown
