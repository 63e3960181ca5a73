"""``GET /.well-known/agent-card.json``: the visible part of the A2A card, with caching headers."""

from __future__ import annotations

from collections import OrderedDict
from email.utils import formatdate
from hashlib import sha256

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from retinue.a2a.server.agents import AgentOf
from retinue.core.errors import RetinueError
from retinue.web.error_table import rest_fault
from retinue.web.security import identity_of

CACHE_CONTROL = "private, max-age=60"
"""A card depends on its reader, and changes with its agent's file."""

_REMEMBERED = 200


class CardEndpoint:
    """The endpoint; it remembers since when each version of a card is served (``Last-Modified``)."""

    def __init__(self, agent_of: AgentOf) -> None:
        self._agent_of = agent_of
        self._since: OrderedDict[str, str] = OrderedDict()

    async def answer(self, request: Request) -> Response:
        caller = identity_of(request.scope).principal
        try:
            card = await self._agent_of(request.scope).render_card(caller, None)
        except RetinueError as error:
            fault = rest_fault(error)
            return JSONResponse(fault.body, fault.status, fault.headers)
        body = orjson.dumps(card)
        # weak: a new signature says the same about the same card
        unsigned = orjson.dumps({key: value for key, value in card.items() if key != "signatures"})
        tag = f'W/"{sha256(unsigned).hexdigest()}"'
        headers = {
            "etag": tag,
            "cache-control": CACHE_CONTROL,
            "vary": "Authorization",
            "last-modified": self._served_since(tag),
        }
        asked = [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]
        if "*" in asked or tag in asked:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type="application/json", headers=headers)

    def _served_since(self, tag: str) -> str:
        if tag not in self._since:
            self._since[tag] = formatdate(usegmt=True)
            if len(self._since) > _REMEMBERED:
                self._since.popitem(last=False)
        return self._since[tag]
