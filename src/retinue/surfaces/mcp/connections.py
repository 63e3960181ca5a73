"""The live connections of the handshake era, to which ``list_changed`` and updates are sent.

The SDK has no public way from a request to its connection (2.3.0): the one private attribute that is
needed is read here and nowhere else, and a test holds the SDK to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from mcp.server.connection import Connection

from retinue.core.call import Principal
from retinue.surfaces.mcp.callers import Context, principal_of
from retinue.surfaces.mcp.eras import is_modern

TELL_WITHIN_S = 10.0
"""A client that does not take a notification for so long has no time to read it."""

DEFAULT_LEVEL = "info"


@dataclass(slots=True)
class Live:
    """One client that stays connected, and what it asked to be told."""

    connection: Connection
    principal: Principal
    sight: Hashable
    uris: set[str] = field(default_factory=set)
    level: str = DEFAULT_LEVEL


class Connections:
    """Every connection of the handshake era from its first message to its end.

    ``sight_of`` is the offer's: equal for clients that see the same.
    """

    def __init__(self, sight_of: Callable[[Principal], Hashable]) -> None:
        self._sight_of = sight_of
        self._live: dict[int, Live] = {}

    def __len__(self) -> int:
        return len(self._live)

    @property
    def sights(self) -> dict[Hashable, Principal]:
        """What those see who are connected, with one of them for each."""
        return {live.sight: live.principal for live in self._live.values()}

    def note(self, context: Context) -> Live | None:
        """The connection of this message; None in the era that has none."""
        if is_modern(context):
            return None
        connection = connection_of(context)
        live = self._live.get(id(connection))
        if live is None:
            principal = principal_of(context)
            live = self._live[id(connection)] = Live(connection, principal, self._sight_of(principal))
            connection.exit_stack.callback(self._live.pop, id(connection), None)
        return live

    async def tell(
        self, method: str, params: dict[str, Any] | None, wanted_by: Callable[[Live], bool]
    ) -> None:
        """Send a notification to those who want it; who does not take it is left out."""
        chosen = [live for live in self._live.values() if wanted_by(live)]
        await asyncio.gather(*(self._send(live, method, params) for live in chosen))

    async def _send(self, live: Live, method: str, params: dict[str, Any] | None) -> None:
        try:
            async with asyncio.timeout(TELL_WITHIN_S):
                await live.connection.notify(method, params)
        except TimeoutError:
            self._live.pop(id(live.connection), None)


def connection_of(context: Context) -> Connection:
    """The connection that this message came over."""
    return context.session._connection
