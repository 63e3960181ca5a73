"""Responses whose body comes in pieces from a store that can fail."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Self

import structlog
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from retinue.core.errors import RetinueError

_log = structlog.get_logger("retinue.web")


class PiecesResponse(StreamingResponse):
    """A response in pieces that closes their source also when the client goes away.

    An error after the head ends the connection before the announced length, and is logged.
    """

    def __init__(
        self, first: bytes, rest: AsyncGenerator[bytes, None], status: int, headers: Mapping[str, str]
    ):
        super().__init__(_chain(first, rest), status, headers)
        self._rest = rest

    @classmethod
    async def begin(
        cls, pieces: AsyncGenerator[bytes, None], status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Self:
        """The response, after its first piece was read; raises what that raises."""
        return cls(await anext(pieces, b""), pieces, status, headers or {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._rest):
            try:
                await super().__call__(scope, receive, send)
            except RetinueError as error:
                _log.warning("response cut off", path=scope["path"], error=error.message)


async def _chain(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    yield first
    async for piece in rest:
        yield piece
