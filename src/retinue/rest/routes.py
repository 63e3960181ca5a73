"""Builds the REST routes of seed 003 for an agent, and for a hub with its agents."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cachetools import LRUCache
from starlette.routing import BaseRoute, Match, NoMatchFound
from starlette.types import Receive, Scope, Send

from retinue.cards.personality_profile import KOI, ShownPersonality, node_rid_of_url, render_profile
from retinue.core.call import Principal
from retinue.core.errors import RetinueError
from retinue.core.record import AgentRecord
from retinue.mesh.dispatch import Calls
from retinue.parts.shown_agents import ShownAgent, ShownAgents
from retinue.rest.endpoints import PREFIXES, agent_routes, call_routes, registry_routes

if TYPE_CHECKING:
    from starlette.datastructures import URLPath

MAX_KEPT = 8
"""Rendered personalities of the process's own agent: readers with other scopes see other ones."""

_PATHS = re.compile(r"(/agents/[^/]+)?(/koi-net|/mcp)?/(resources|tools)/(list|read|call)(/|$)")
_ROUTE = "retinue.rest.route"


class RestRoutes(BaseRoute):
    """The routes as one: a request with another path costs one comparison instead of one for each of them."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self.routes = routes

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http" or _PATHS.match(scope["path"]) is None:
            return Match.NONE, {}
        partial: tuple[Match, Scope] = (Match.NONE, {})
        for route in self.routes:
            match, child = route.matches(scope)
            if match is Match.FULL:
                return match, {**child, _ROUTE: route}
            if match is Match.PARTIAL and partial[0] is Match.NONE:
                partial = match, {**child, _ROUTE: route}
        return partial

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await scope[_ROUTE].handle(scope, receive, send)

    def url_path_for(self, name: str, /, **path_params: Any) -> URLPath:
        raise NoMatchFound(name, path_params)


def rest_route(calls: Calls, shown: ShownAgents, url: str) -> RestRoutes:
    """The routes of a process at ``url``.

    An agent has the four routes of its own agent; a hub has the lists of its agents, and the four routes of
    each below ``/agents/{agent}``.
    """

    def show(agent: ShownAgent) -> ShownPersonality | None:
        # an agent that serves the routes is called at its own url, any other one through the hub
        record, name = agent.record, agent.name
        endpoint = (
            next((known.url for known in record.endpoints if known.protocol == KOI), None) or record.url
        )
        through_hub = f"{url}/agents/{quote(name, safe='')}"
        return _show(
            name, record, node_url=endpoint or url, mcp_url=endpoint or through_hub, scopes=agent.scopes
        )

    kept: LRUCache[tuple[frozenset[str], int], ShownPersonality | None] = LRUCache(MAX_KEPT)

    async def list_personalities(caller: Principal) -> list[ShownPersonality]:
        personalities = [show(agent) async for agent in shown.iterate_others(caller)]
        return [personality for personality in personalities if personality is not None]

    async def find(caller: Principal, name: str | None, *, for_call: bool = False) -> ShownPersonality | None:
        try:
            agent = await shown.find(name or shown.agent.name, caller, for_call=for_call)
        except RetinueError:
            return None
        if agent.is_narrowed or agent.name != shown.agent.name or agent.scopes != shown.own(caller).scopes:
            # of another process, whose revision is not known here, or with what one caller sees of it
            return show(agent)
        version = (agent.scopes, shown.agent.revision)
        if version not in kept:
            kept[version] = show(agent)
        return kept[version]

    async def find_other(caller: Principal, name: str | None) -> ShownPersonality | None:
        return None if name == shown.agent.name else await find(caller, name)

    find_called = partial(find, for_call=True)
    if not shown.has_others:
        return RestRoutes(agent_routes(find, calls, find_called=find_called))
    below = [f"/agents/{{agent}}{prefix}" for prefix in PREFIXES]
    return RestRoutes(
        [
            *registry_routes(list_personalities, find_other),
            *agent_routes(find, calls, prefixes=below, find_called=find_called),
            *call_routes(find_called, calls),
        ]
    )


def _show(
    name: str, record: AgentRecord, *, node_url: str, mcp_url: str, scopes: frozenset[str]
) -> ShownPersonality | None:
    """The personality of a record under this name; None if no RID can hold the name or the version.

    Two agents of one name stand in a hub's lists under the names that its directory has for them.
    """
    try:
        content = render_profile(
            replace(record, name=name), node_rid_of_url(name, node_url), mcp_url=mcp_url, scopes=scopes
        )
    except ValueError:
        return None
    return ShownPersonality(name, content)
