"""``GET /openapi.json``: the OpenAPI 3.1 document of a process, and at a hub that of each of its agents.

A document holds what its reader may see. It is built in slices, so that a thousand agents do not delay other
requests, and kept until an agent changes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

from cachetools import LRUCache
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from retinue.cards.personality_profile import DEFAULT_VERSION, personality_rid
from retinue.cards.retinue_block import list_shown_skills
from retinue.core.call import Principal
from retinue.core.errors import RetinueError
from retinue.mesh.permissions import Access
from retinue.openapi.codec.description import DOCUMENT_PATH, DocumentBuilder, Frame, list_left_out
from retinue.openapi.codec.known_routes import list_operations
from retinue.parts.shown_agents import ShownAgent, ShownAgents
from retinue.web.addresses import base_of
from retinue.web.error_table import rest_fault
from retinue.web.security import SecurityMiddleware, identity_of

MAX_KEPT_BYTES = 16 * 1024 * 1024
"""Documents that are kept, for readers with other rights and at other addresses."""

SLICE_S = 0.004
"""How long the building of a document runs before other tasks do."""

ListRoutes = Callable[[], Iterable[BaseRoute]]


class DocumentEndpoint:
    """Builds and keeps the documents of one process.

    ``url`` is its public base URL; None means the one in the request.
    """

    def __init__(
        self, shown: ShownAgents, access: Access, list_routes: ListRoutes, url: str | None = None
    ) -> None:
        self._shown = shown
        self._access = access
        self._list_routes = list_routes
        self._url = url
        self._checks: SecurityMiddleware | None = None
        self._kept: LRUCache[Any, bytes] = LRUCache(MAX_KEPT_BYTES, getsizeof=len)
        self._building = asyncio.Lock()

    def routes(self) -> Sequence[Route]:
        """The routes: of the process, and at a hub of each agent."""
        own = Route(DOCUMENT_PATH, self._answer_own, methods=["GET"])
        named = Route(f"/agents/{{agent}}{DOCUMENT_PATH}", self._answer_named, methods=["GET"])
        return (own, named) if self._shown.has_others else (own,)

    def take_checks(self, checks: SecurityMiddleware) -> None:
        """Read from these checks whether a caller needs a token."""
        self._checks = checks

    async def _answer_own(self, request: Request) -> Response:
        caller, base = identity_of(request.scope).principal, self._base_of(request)
        try:
            revision = await self._shown.read_revision()
            key = (revision, caller.scopes, self._access.view_of(caller), base, self._is_open)
            document = self._kept.get(key)
            if document is None:
                # one at a time: a second reader finds what the first one has built
                async with self._building:
                    document = self._kept.get(key) or await self.build(caller, base)
                    self._keep(key, document)
        except RetinueError as error:
            return _refuse(error)
        return Response(document, media_type="application/json")

    async def _answer_named(self, request: Request) -> Response:
        caller = identity_of(request.scope).principal
        try:
            agent = await self._shown.find(request.path_params["agent"], caller)
        except RetinueError as error:
            return _refuse(error)
        builder, slices = DocumentBuilder(), _Slices()
        await _add_agent(builder, agent, _path_of(agent.name), slices, named=False)
        left_out = list_left_out([agent.name] if builder.is_full else [], more=False)
        frame = _frame_of(agent, self._base_of(request), self._is_open)
        return Response(builder.render(frame, left_out=left_out), media_type="application/json")

    @property
    def _is_open(self) -> bool:
        return self._checks is None or self._checks.accepts_anonymous

    def _keep(self, key: Any, document: bytes) -> None:
        revision = key[0]
        for old in [old for old in self._kept if old[0] != revision]:
            del self._kept[old]
        if len(document) <= MAX_KEPT_BYTES:
            self._kept[key] = document

    async def build(self, caller: Principal, base: str) -> bytes:
        """The document of the process for a caller who reaches it at ``base``; other tasks run meanwhile."""
        builder, slices = DocumentBuilder(), _Slices()
        for method, path, operation in list_operations(_list_declared(self._list_routes())):
            builder.add_route(method, path, operation)
        await self._shown.decide(caller)
        own = self._shown.own(caller)
        await _add_agent(builder, own, "", slices, named=False)
        left_out: list[str] = []
        more = False
        async for agent in self._shown.iterate_others(caller):
            if builder.is_full:
                more = True
                break
            if not await _add_agent(builder, agent, _path_of(agent.name), slices, named=True):
                left_out.append(agent.name)
        await slices.pause()
        frame = _frame_of(own, base, self._is_open)
        return builder.render(frame, left_out=list_left_out(left_out, more=more))

    def _base_of(self, request: Request) -> str:
        own = base_of(request.scope, request.headers["host"].encode("latin-1"))
        return (self._url or own).rstrip("/")


async def _add_agent(
    builder: DocumentBuilder, agent: ShownAgent, prefix: str, slices: _Slices, *, named: bool
) -> bool:
    """Add the skills of an agent that the caller sees; False if they have no place in the document.

    An agent whose name or version no RID can hold has no route for its skills.
    """
    try:
        personality_rid(agent.name, agent.record.version or DEFAULT_VERSION)
    except ValueError:
        return True
    skills = list_shown_skills(agent.record, agent.scopes)
    if skills and not builder.is_full:
        builder.add_tag(agent.record, agent.name)
    for skill in skills:
        if not builder.add_skill(skill, agent.name, prefix, named=named):
            return False
        await slices.pause_if_due()
    return True


def _path_of(name: str) -> str:
    return f"/agents/{quote(name, safe='')}"


def _frame_of(agent: ShownAgent, base: str, anonymous: bool) -> Frame:
    record = agent.record
    if not list_shown_skills(record, agent.scopes):
        # who does not see the agent does not read its description either
        return Frame(agent.name, record.version or DEFAULT_VERSION, "", base, anonymous)
    return Frame(
        record.title or agent.name, record.version or DEFAULT_VERSION, record.description, base, anonymous
    )


def _list_declared(routes: Iterable[BaseRoute]) -> Iterator[tuple[str, str]]:
    """Method and path of each route, also of routes within others."""
    for route in routes:
        if isinstance(route, Route):
            for method in route.methods or ():
                yield method, route.path
        else:
            yield from _list_declared(getattr(route, "routes", None) or ())


def _refuse(error: RetinueError) -> Response:
    fault = rest_fault(error)
    return JSONResponse(fault.body, fault.status, fault.headers)


class _Slices:
    """Lets other tasks run when `SLICE_S` have passed."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    async def pause_if_due(self) -> None:
        if time.perf_counter() - self._began >= SLICE_S:
            await self.pause()

    async def pause(self) -> None:
        await asyncio.sleep(0)
        self._began = time.perf_counter()
