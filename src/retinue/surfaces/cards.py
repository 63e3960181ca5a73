"""``GET /agent-card``: the agent's own card, as much of it as the caller may see (P-10)."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from retinue.core.call import Principal
from retinue.surfaces.security import visitor_of

_NOTHING: frozenset[str] = frozenset()

CardSource = Callable[[frozenset[str]], bytes]
"""Renders the card for a caller with these scopes; expected to be cheap."""


def card_route(
    card: CardSource, path: str = "/agent-card", *, sees: Callable[[Principal], bool] = lambda _: True
) -> Route:
    """The route of one agent's card; the bytes are the ones that were published.

    A caller that does not see the agent finds a card without skills.
    """

    async def answer(request: Request) -> Response:
        caller = visitor_of(request.scope).principal
        return Response(card(caller.scopes if sees(caller) else _NOTHING), media_type="application/json")

    return Route(path, answer, methods=["GET"])
