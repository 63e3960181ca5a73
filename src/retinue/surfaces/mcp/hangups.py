"""What is to be done when the client of one HTTP request hangs up before it has its answer."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Message, Receive, Scope

_KEY = "retinue.mcp.hang_ups"


class HangUps:
    """The list of one request; `watch` puts it there."""

    __slots__ = ("_then",)

    def __init__(self) -> None:
        self._then: list[Callable[[], None]] = []

    @staticmethod
    def of(scope: Scope) -> HangUps:
        """The list of this request; one that nobody reads where it is not watched."""
        found = scope.get(_KEY)
        return found if isinstance(found, HangUps) else HangUps()

    def add(self, then: Callable[[], None]) -> None:
        self._then.append(then)

    def remove(self, then: Callable[[], None]) -> None:
        self._then.remove(then)

    def happened(self) -> None:
        for then in list(self._then):
            then()


def watch(scope: Scope, receive: Receive) -> Receive:
    """``receive`` that notes when the client has gone; whoever streams an answer waits for that anyway."""
    hang_ups = scope[_KEY] = HangUps()

    async def receive_watched() -> Message:
        message = await receive()
        if message["type"] == "http.disconnect":
            hang_ups.happened()
        return message

    return receive_watched
