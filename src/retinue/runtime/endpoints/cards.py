"""``GET /agent-card`` of a process: the card of its own agent and, at a hub, of every agent."""

from __future__ import annotations

from cachetools import LRUCache
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retinue.cards.pallet_card import encode_card, render_card
from retinue.core.errors import RetinueError
from retinue.parts.shown_agents import ShownAgent, ShownAgents
from retinue.web.error_table import rest_fault
from retinue.web.security import identity_of

MAX_KEPT = 8
"""Rendered cards of the process's own agent: readers with other scopes see other ones."""


def card_routes(shown: ShownAgents) -> tuple[Route, ...]:
    """The routes of the cards; each reader gets the part of the card that it may see (P-10).

    The process's own card is rendered once for each revision of its agent. A caller that does not see that
    agent gets a card without skills.
    """
    kept: LRUCache[tuple[frozenset[str], int], bytes] = LRUCache(MAX_KEPT)

    async def answer_own(request: Request) -> Response:
        agent = shown.own(identity_of(request.scope).principal)
        version = (agent.scopes, shown.agent.revision)
        if version not in kept:
            kept[version] = _encode(agent)
        return Response(kept[version], media_type="application/json")

    async def answer_named(request: Request) -> Response:
        caller = identity_of(request.scope).principal
        try:
            agent = await shown.find(request.path_params["agent"], caller)
        except RetinueError as error:
            fault = rest_fault(error)
            return JSONResponse(fault.body, fault.status, fault.headers)
        return Response(_encode(agent), media_type="application/json")

    own = Route("/agent-card", answer_own, methods=["GET"])
    named = Route("/agents/{agent}/agent-card", answer_named, methods=["GET"])
    return (own, named) if shown.has_others else (own,)


def _encode(agent: ShownAgent) -> bytes:
    return encode_card(render_card(agent.record, scopes=agent.scopes))
