"""``GET /.well-known/agent-card.json``: the visible part of the A2A card, with caching headers.

The version of the card is that of the request. Without one it is a card of 0.3, which the A2A specification
assumes then; readers of 1.x find their interfaces in it, because resolvers of both versions send no version.
"""

from __future__ import annotations

from collections import OrderedDict
from email.utils import formatdate
from hashlib import sha256

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from retinue.a2a.server.agents import AgentOf
from retinue.a2a.server.versions import VERSION_HEADER, read_version
from retinue.core.errors import RetinueError
from retinue.web.error_table import rest_fault
from retinue.web.security import identity_of

CACHE_CONTROL = "private, max-age=60"
"""A card depends on its reader, and changes with its agent's file."""

VARY = "Authorization, A2A-Version"

_REMEMBERED = 200


class CardEndpoint:
    """The endpoint; it remembers since when each version of a card is served (``Last-Modified``)."""

    def __init__(self, agent_of: AgentOf) -> None:
        self._agent_of = agent_of
        self._since: OrderedDict[str, str] = OrderedDict()

    async def answer(self, request: Request) -> Response:
        caller = identity_of(request.scope).principal
        try:
            card = await self._agent_of(request.scope).render_card(caller, _is_legacy(request))
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
            "vary": VARY,
            "last-modified": self._served_since(tag),
        }
        known_tags = [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]
        if "*" in known_tags or tag in known_tags:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type="application/json", headers=headers)

    def _served_since(self, tag: str) -> str:
        if tag not in self._since:
            self._since[tag] = formatdate(usegmt=True)
            if len(self._since) > _REMEMBERED:
                self._since.popitem(last=False)
        return self._since[tag]


def _is_legacy(request: Request) -> bool | None:
    """Whether a card of 0.3 is asked for; None = the request has no version.

    A reader of a version that is not spoken gets the card of 1.x, which tells the versions.
    """
    version = read_version(request.headers.get(VERSION_HEADER, ""), request.scope.get("query_string", b""))
    return None if not version else version.partition(".")[0] == "0"
