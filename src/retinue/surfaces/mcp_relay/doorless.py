"""Agents that have no MCP door: which they are is found out by asking, and another door stands for theirs."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Message, Receive, Scope

from retinue.core.record import Listing, ListingKey

TRUSTED_S = 60.0
"""After so long an agent is asked again whether it has a door now; sessions go on where they are."""

_MAX_KNOWN = 10_000
_SESSION = b"mcp-session-id"

Open = Callable[[Listing], Awaitable[ASGIApp]]


class Doorless:
    """``open_door`` gives the door that stands for an agent's; without it there is none."""

    def __init__(self, open_door: Open | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._open = open_door
        self._clock = clock
        self._known: OrderedDict[ListingKey, tuple[str | None, float]] = OrderedDict()

    async def find(self, listing: Listing | None, scope: Scope) -> ASGIApp | None:
        """The door that stands for the agent's, where it is known to have none."""
        known = None if listing is None else self._known.get(listing.id)
        if listing is None or known is None or self._open is None or not listing.enabled:
            return None
        url, asked_at = known
        in_session = any(name == _SESSION for name, _ in scope["headers"])
        if url != listing.record.url or (self._clock() - asked_at > TRUSTED_S and not in_session):
            return None
        return await self._open(listing)

    @property
    def is_open(self) -> bool:
        """Whether there are doors that stand for others."""
        return self._open is not None

    async def note(self, listing: Listing) -> ASGIApp:
        """The door for an agent that has just been found to have none."""
        assert self._open is not None
        self._known[listing.id] = (listing.record.url, self._clock())
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return await self._open(listing)


def receive_again(body: bytes | None, receive: Receive) -> Receive:
    """``receive`` of a request whose body has been read already."""
    if body is None:
        return receive
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
