"""The common protocols of hub and agents as parts, with the ranks of their routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from cachetools import LRUCache
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retinue.cards.pallet_card import encode_card, render_card
from retinue.core.errors import RetinueError
from retinue.openapi.server import DocumentEndpoint
from retinue.parts.opening import OpenParts
from retinue.parts.part import Opened, Part
from retinue.parts.process import Process
from retinue.parts.shown_agents import ShownAgent, ShownAgents
from retinue.rest.routes import rest_route
from retinue.rpc.server import execute_route, health_route
from retinue.runtime.access import protected_resource
from retinue.runtime.endpoints.a2a import open_a2a
from retinue.runtime.factories import public_card_key
from retinue.runtime.messages import Messages
from retinue.runtime.observing.process_state import ProcessState
from retinue.settings_tables import AuthTable, ExecuteTable, SignatureTable
from retinue.web.error_table import rest_fault
from retinue.web.rejections import keys_route, metadata_routes
from retinue.web.security import identity_of

MAX_KEPT_CARDS = 8
"""Rendered cards of the process's own agent: readers with other scopes see other ones."""

_SERVING = frozenset({"hub", "agent"})


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


class A2aPart(Part):
    """A2A: JSON-RPC and cards of the process's agent, and at a hub of every agent."""

    name = "a2a"
    kinds = _SERVING
    needs = (Messages,)
    rank = 40
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        async with open_a2a(process, process.get(Messages).answer_envelope) as endpoints:
            yield Opened(routes=endpoints.routes, drain=endpoints.end)


class CardPart(Part):
    """The pallet card of the process's agent, and at a hub of every agent."""

    name = "card"
    kinds = _SERVING
    rank = 50
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        yield Opened(routes=_card_routes(process.shown))


class RestPart(Part):
    """The REST routes for tools and resources."""

    name = "rest"
    kinds = _SERVING
    rank = 60
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        yield Opened(routes=(rest_route(process.dispatcher, process.shown, process.url or ""),))


class OpenApiPart(Part):
    """The OpenAPI document of the process, and at a hub of every agent."""

    name = "openapi"
    kinds = _SERVING
    rank = 65
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        # the routes of all parts, once they are open
        parts = process.get(OpenParts)
        endpoint = DocumentEndpoint(
            process.shown,
            process.dispatcher.access,
            parts.list_routes,
            process.tables.get(AuthTable).resource,
        )
        yield Opened(routes=endpoint.routes(), on_checks=endpoint.take_checks)


class ProbesPart(Part):
    """Probes, metrics, the keys of cards and the metadata of the authorization server."""

    name = "probes"
    kinds = frozenset({"hub", "agent", "worker"})
    rank = 70
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        state = process.find(ProcessState)
        keys = keys_route(partial(public_card_key, process.tables.get(SignatureTable), process.state))
        yield Opened(
            routes=(
                health_route(),
                *(() if state is None else state.routes()),
                *(() if process.kind == "worker" else (keys,)),
                *metadata_routes(protected_resource(process.tables.get(AuthTable))),
            )
        )


def _card_routes(shown: ShownAgents) -> tuple[Route, ...]:
    """The routes of the cards; each reader gets the part of the card that it may see (P-10).

    The process's own card is rendered once for each revision of its agent. A caller that does not see that
    agent gets a card without skills.
    """
    kept: LRUCache[tuple[frozenset[str], int], bytes] = LRUCache(MAX_KEPT_CARDS)

    async def answer_own(request: Request) -> Response:
        caller = identity_of(request.scope).principal
        await shown.decide(caller)
        agent = shown.own(caller)
        if agent.is_narrowed:
            return Response(_encode_card(agent), media_type="application/json")
        version = (agent.scopes, shown.agent.revision)
        if version not in kept:
            kept[version] = _encode_card(agent)
        return Response(kept[version], media_type="application/json")

    async def answer_named(request: Request) -> Response:
        caller = identity_of(request.scope).principal
        try:
            agent = await shown.find(request.path_params["agent"], caller)
        except RetinueError as error:
            fault = rest_fault(error)
            return JSONResponse(fault.body, fault.status, fault.headers)
        return Response(_encode_card(agent), media_type="application/json")

    own = Route("/agent-card", answer_own, methods=["GET"])
    named = Route("/agents/{agent}/agent-card", answer_named, methods=["GET"])
    return (own, named) if shown.has_others else (own,)


def _encode_card(agent: ShownAgent) -> bytes:
    return encode_card(render_card(agent.record, scopes=agent.scopes))
