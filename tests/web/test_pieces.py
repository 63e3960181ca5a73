"""Responses in pieces whose source fails."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import aiohttp
import pytest
from starlette.types import Receive, Scope, Send
from structlog.testing import capture_logs

from retinue.core.errors import StateError, UnknownArtifactError
from retinue.web.disconnect import PiecesResponse
from tests.serving import serve_app


class Source:
    """Pieces, then an error; notes that it was closed."""

    def __init__(self, *pieces: bytes, error: Exception | None = None) -> None:
        self._pieces = pieces
        self._error = error
        self.is_closed = False

    async def read(self) -> AsyncGenerator[bytes, None]:
        try:
            for piece in self._pieces:
                yield piece
            if self._error is not None:
                raise self._error
        finally:
            self.is_closed = True


async def test_an_error_of_the_first_piece_is_raised_before_the_head() -> None:
    source = Source(error=UnknownArtifactError("sha256:0"))
    with pytest.raises(UnknownArtifactError):
        await PiecesResponse.begin(source.read())


@pytest.mark.parametrize("pieces", [(), (b"one",), (b"one", b"two")])
async def test_all_pieces_are_sent_and_the_source_is_closed(pieces: tuple[bytes, ...]) -> None:
    source = Source(*pieces)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (await PiecesResponse.begin(source.read(), headers={"x-a": "b"}))(scope, receive, send)

    async with serve_app(app) as url, aiohttp.ClientSession() as session, session.get(url) as answer:
        assert (answer.status, answer.headers["x-a"], await answer.read()) == (200, "b", b"".join(pieces))
    assert source.is_closed


async def test_a_later_error_ends_the_connection_and_is_logged_without_a_traceback() -> None:
    source = Source(b"one", error=StateError("the disk is away"))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        response = await PiecesResponse.begin(source.read(), headers={"content-length": "6"})
        await response(scope, receive, send)

    with capture_logs() as lines:
        async with serve_app(app) as url, aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                async with session.get(url) as answer:
                    await answer.read()
    assert [(line["event"], line["error"]) for line in lines] == [("response cut off", "the disk is away")]
    assert source.is_closed
