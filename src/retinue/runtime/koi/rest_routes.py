"""The REST routes of seed 003 at every agent and at the hub; loaded at the first request for one of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.routing import BaseRoute, Match, NoMatchFound
from starlette.types import Receive, Scope, Send

from retinue.authoring.agent import Agent
from retinue.core.call import Principal
from retinue.core.errors import RetinueError
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.permissions import is_seen

if TYPE_CHECKING:
    from starlette.datastructures import URLPath

    from retinue.core.record import AgentRecord
    from retinue.koi.codec.personality import PersonalityProfile
    from retinue.runtime.mesh import Mesh

_PATHS = re.compile(r"(/agents/[^/]+)?(/koi-net|/mcp)?/(resources|tools)/(list|read|call)(/|$)")
_FOUND = "retinue.koi.route"


class LazyRoutes(BaseRoute):
    """Routes that are made when a request has one of their paths: no other request pays for their imports."""

    def __init__(self, make: Callable[[], Sequence[BaseRoute]]) -> None:
        self._make = make
        self._routes: Sequence[BaseRoute] | None = None

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http" or _PATHS.match(scope["path"]) is None:
            return Match.NONE, {}
        partial: tuple[Match, Scope] = (Match.NONE, {})
        for route in self.open():
            match, found = route.matches(scope)
            if match is Match.FULL:
                return match, {**found, _FOUND: route}
            if match is Match.PARTIAL and partial[0] is Match.NONE:
                partial = match, {**found, _FOUND: route}
        return partial

    def open(self) -> Sequence[BaseRoute]:
        """The routes, made at the first call."""
        if self._routes is None:
            self._routes = self._make()
        return self._routes

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await scope[_FOUND].handle(scope, receive, send)

    def url_path_for(self, name: str, /, **path_params: Any) -> URLPath:
        raise NoMatchFound(name, path_params)


def agent_rest(agent: Agent, dispatcher: Dispatcher, url: str) -> BaseRoute:
    """The four routes of the agent of this process, which is at ``url``."""

    def make() -> Sequence[BaseRoute]:
        from retinue.koi.codec.profile_records import node_of_url, render_profile
        from retinue.koi.rest import agent_routes

        @lru_cache(maxsize=8)
        def render(scopes: frozenset[str], revision: int) -> PersonalityProfile | None:
            try:
                return render_profile(
                    agent.record(url), node_of_url(agent.name, url), mcp_url=url, scopes=scopes
                )
            except ValueError:  # no RID can hold this name
                return None

        async def find(caller: Principal, name: str | None) -> PersonalityProfile | None:
            if not is_seen(dispatcher.access.view_of(caller), agent.name):
                return None
            return render(caller.scopes, agent.revision)

        return agent_routes(find, dispatcher)

    return LazyRoutes(make)


def hub_rest(mesh: Mesh, url: str) -> BaseRoute:
    """The lists of the hub at ``url``, and the four routes of each agent below ``/agents/{agent}``."""

    def make() -> Sequence[BaseRoute]:
        from retinue.koi.codec.profile_records import KOI, node_of_url, render_profile
        from retinue.koi.rest import agent_routes, call_routes, registry_routes

        directory = mesh.directory

        def render(name: str, record: AgentRecord, scopes: frozenset[str]) -> PersonalityProfile | None:
            # an agent that serves the routes is called at its own url, any other one through the hub
            own = next((one.url for one in record.endpoints if one.protocol == KOI), None) or record.url
            try:
                # two agents of one name stand in the lists under the names that the directory has for them
                return render_profile(
                    replace(record, name=name),
                    node_of_url(name, own or url),
                    mcp_url=own or f"{url}/agents/{quote(name, safe='')}",
                    scopes=scopes,
                )
            except ValueError:
                return None

        async def list_profiles(caller: Principal) -> list[PersonalityProfile]:
            await directory.ensure_fresh()
            view = mesh.access.view_of(caller)
            found: list[PersonalityProfile] = []
            async for page in directory.iterate_pages():
                for listing in directory.open_all([one for one in page if is_seen(view, one.name)]):
                    profile = render(directory.name_of(listing), listing.record, caller.scopes)
                    if profile is not None:
                        found.append(profile)
            return found

        async def find(caller: Principal, name: str | None) -> PersonalityProfile | None:
            view = mesh.access.view_of(caller)
            if name is None or name == mesh.agent.name:
                is_own = is_seen(view, mesh.agent.name)
                return render(mesh.agent.name, mesh.agent.record(url), caller.scopes) if is_own else None
            await directory.ensure_fresh()
            try:
                listing = await directory.open_named(name, view=view)
            except RetinueError:
                return None
            return render(directory.name_of(listing), listing.record, caller.scopes)

        below = [f"/agents/{{agent}}{prefix}" for prefix in ("", "/koi-net", "/mcp")]
        return [
            *registry_routes(list_profiles),
            *agent_routes(find, mesh.dispatcher, prefixes=below),
            *call_routes(find, mesh.dispatcher),
        ]

    return LazyRoutes(make)
