"""The REST routes of seed 003 as an agent has them, and as a hub has them for itself and its agents."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.routing import BaseRoute, Match, NoMatchFound
from starlette.types import Receive, Scope, Send

from retinue.cards.personality_profile import KOI, ShownPersonality, node_rid_of_url, render_profile
from retinue.core.call import Principal
from retinue.core.errors import RetinueError
from retinue.core.record import AgentRecord
from retinue.mesh.directory.directory import Directory
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.permissions import is_seen
from retinue.rest.endpoints import PREFIXES, agent_routes, call_routes, registry_routes

if TYPE_CHECKING:
    from starlette.datastructures import URLPath

ReadRecord = Callable[[str], AgentRecord]
"""The record of the agent of this process, which is at this url."""

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


def agent_rest(
    name: str, read_record: ReadRecord, read_revision: Callable[[], int], dispatcher: Dispatcher, url: str
) -> RestRoutes:
    """The four routes of the agent of this process; it is at ``url``, and a new revision is a new record."""

    @lru_cache(maxsize=8)
    def render(scopes: frozenset[str], revision: int) -> ShownPersonality | None:
        return _show(name, read_record(url), node_url=url, mcp_url=url, scopes=scopes)

    async def find(caller: Principal, named: str | None) -> ShownPersonality | None:
        if not is_seen(dispatcher.access.view_of(caller), name):
            return None
        return render(caller.scopes, read_revision())

    return RestRoutes(agent_routes(find, dispatcher))


def hub_rest(
    directory: Directory, dispatcher: Dispatcher, own_name: str, read_record: ReadRecord, url: str
) -> RestRoutes:
    """The lists of the hub at ``url``, and the four routes of each agent below ``/agents/{agent}``."""

    def show(name: str, record: AgentRecord, scopes: frozenset[str]) -> ShownPersonality | None:
        # an agent that serves the routes is called at its own url, any other one through the hub
        endpoint = next((one.url for one in record.endpoints if one.protocol == KOI), None) or record.url
        through_hub = f"{url}/agents/{quote(name, safe='')}"
        return _show(name, record, node_url=endpoint or url, mcp_url=endpoint or through_hub, scopes=scopes)

    async def list_personalities(caller: Principal) -> list[ShownPersonality]:
        await directory.ensure_fresh()
        view = dispatcher.access.view_of(caller)
        personalities: list[ShownPersonality] = []
        async for page in directory.iterate_pages():
            for listing in directory.open_all([entry for entry in page if is_seen(view, entry.name)]):
                personality = show(directory.name_of(listing), listing.record, caller.scopes)
                if personality is not None:
                    personalities.append(personality)
        return personalities

    async def find(caller: Principal, name: str | None) -> ShownPersonality | None:
        view = dispatcher.access.view_of(caller)
        if name is None or name == own_name:
            is_shown = is_seen(view, own_name)
            return show(own_name, read_record(url), caller.scopes) if is_shown else None
        await directory.ensure_fresh()
        try:
            listing = await directory.open_named(name, view=view)
        except RetinueError:
            return None
        return show(directory.name_of(listing), listing.record, caller.scopes)

    below = [f"/agents/{{agent}}{prefix}" for prefix in PREFIXES]
    return RestRoutes(
        [
            *registry_routes(list_personalities),
            *agent_routes(find, dispatcher, prefixes=below),
            *call_routes(find, dispatcher),
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
