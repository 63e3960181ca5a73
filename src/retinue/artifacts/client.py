"""The artifacts of a hub for programs and agents elsewhere, in pieces over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, unquote

import orjson

from retinue.artifacts.codec import DIGEST_HEADER, NAME_HEADER, RUN_HEADER, parse_size
from retinue.core.artifact_links import PATH, UNKNOWN_TYPE, check_digest, check_media_type, clean_name
from retinue.core.errors import (
    AgentUnreachableError,
    InvalidRequestError,
    NotAuthenticatedError,
    RemoteFaultError,
    UnknownArtifactError,
)
from retinue.core.record import HUB_NAME
from retinue.core.remote_faults import rebuild_error
from retinue.mesh.artifacts import Artifact, Content
from retinue.storage.artifacts.blobs import PIECE_BYTES, file_name_in, iterate_content, measure
from retinue.storage.artifacts.export import export_artifact
from retinue.storage.artifacts.store import guess_type
from retinue.web.codec.peer_requests import CALLER_HEADER, lost
from retinue.web.transport import HttpRequester, HttpResponse, HttpStream, TransportError

if TYPE_CHECKING:  # most programs send no file
    from retinue.web.http_client import HttpClient

REQUEST_S = 60.0
"""The time limit of a request without content."""

STALL_S = 60.0
"""How long a download waits for its next piece."""

_ATTEMPTS = 4
_AGAIN_S = 0.2
_MAX_ERROR_BYTES = 64 * 1024
_LOST = frozenset({502, 503, 504})


@dataclass(frozen=True, slots=True)
class ArtifactServer:
    """Where the artifacts are: the URL of a hub, how to ask it, and the headers with the token."""

    url: str
    http: HttpRequester
    headers: Mapping[str, str]
    open_uploader: Callable[[], Awaitable[HttpClient]]


class HubArtifacts:
    """The artifacts of the hub that ``choose`` names before each request: an `ArtifactStore`."""

    def __init__(self, choose: Callable[[], Awaitable[ArtifactServer]]) -> None:
        self._choose = choose

    async def save(
        self,
        content: Content,
        media_type: str | None = None,
        *,
        caller: str = "",
        name: str | None = None,
        run: str | None = None,
        digest: str | None = None,
    ) -> Artifact:
        """As `ArtifactStore.save`; ``caller`` is told where this process speaks for others."""
        server = await self._choose()
        file_name = name or file_name_in(content)
        plain = None if file_name is None else clean_name(file_name)
        kind = check_media_type(media_type or guess_type(plain))
        headers = {**server.headers, "content-type": kind}
        if plain is not None:
            headers[NAME_HEADER] = quote(plain, safe="")
        if caller:
            headers[CALLER_HEADER] = quote(caller, safe="")
        if run is not None:
            headers[RUN_HEADER] = run
        if digest is not None:
            headers[DIGEST_HEADER] = check_digest(digest)
        reply = await self._send(server, headers, content)
        link = _read(server, reply, 201)
        return Artifact.of(link, self)

    async def find(self, digest: str) -> Artifact:
        server = await self._choose()
        reply = await self._ask(server, "HEAD", check_digest(digest))
        if reply.status == 404:
            raise UnknownArtifactError(digest)
        if reply.status != 200:
            _raise(server, reply.status, reply.body, digest)
        size = parse_size(reply.headers)
        return Artifact(
            digest,
            size,
            reply.headers.get("content-type", UNKNOWN_TYPE),
            _name_in(reply.headers.get("content-disposition", "")),
            self,
        )

    async def open(self, digest: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        check_digest(digest)
        at, failures = start, 0
        while end is None or at < end:
            before = at
            try:
                async with aclosing(self._download(digest, at, end)) as pieces:
                    async for piece in pieces:
                        at += len(piece)
                        yield piece
                return
            except AgentUnreachableError:
                # content never changes, so what is missing is asked for again
                failures = 0 if at > before else failures + 1
                if failures >= _ATTEMPTS:
                    raise
                await asyncio.sleep(_AGAIN_S * 3**failures)

    async def export(self, artifact: Artifact, path: str | PathLike[str]) -> Path:
        return await export_artifact(replace(artifact, _store=self), path)

    # lists and deletion

    async def list_all(
        self, *, everyone: bool = False, after: float | None = None, limit: int = 100
    ) -> dict[str, Any]:
        """The artifacts of the caller, newest first, or those of everyone, with their number and quota."""
        query = f"?limit={limit}{'&all=1' if everyone else ''}{'' if after is None else f'&after={after!r}'}"
        server = await self._choose()
        return _read(server, await self._ask(server, "GET", "", query), 200)

    async def show(self, digest: str) -> dict[str, Any]:
        """The link, when and by whom it was saved, whether a run holds it. Raises UnknownArtifactError."""
        server = await self._choose()
        return _read(server, await self._ask(server, "GET", f"{check_digest(digest)}/holders"), 200, digest)

    async def delete(self, digest: str, *, everyone: bool = False) -> bool:
        """End the hold of the caller, or of everyone; True if the content is deleted."""
        server = await self._choose()
        query = "?all=1" if everyone else ""
        reply = await self._ask(server, "DELETE", check_digest(digest), query)
        return bool(_read(server, reply, 200, digest)["deleted"])

    async def collect(self) -> dict[str, Any]:
        """Delete what nothing holds any more; returns the ``count`` and the ``bytes``."""
        server = await self._choose()
        return _read(server, await self._ask(server, "POST", "collect"), 200)

    async def _send(self, server: ArtifactServer, headers: dict[str, str], content: Content) -> HttpResponse:
        url = _url(server, "")
        try:
            async with aclosing(iterate_content(content)) as pieces:
                first = await anext(pieces, b"")
                second = await anext(pieces, None)
                if second is None and len(first) <= PIECE_BYTES:
                    return await server.http.request(
                        "POST", url, headers=headers, body=first, timeout_s=REQUEST_S, what="artifact"
                    )
                size_bytes = await asyncio.to_thread(measure, content)
                if size_bytes is not None:
                    headers["content-length"] = str(size_bytes)
                async with aclosing(_chain(first, second or b"", pieces, size_bytes)) as chained:
                    uploader = await server.open_uploader()
                    return await uploader.upload("POST", url, headers=headers, pieces=chained)
        except TransportError as error:
            raise AgentUnreachableError(HUB_NAME, server.url, error.cause, sent=error.sent) from error

    async def _ask(self, server: ArtifactServer, method: str, path: str, query: str = "") -> HttpResponse:
        try:
            return await server.http.request(
                method,
                _url(server, path) + query,
                headers=server.headers,
                timeout_s=REQUEST_S,
                what="artifacts",
            )
        except TransportError as error:
            raise AgentUnreachableError(HUB_NAME, server.url, error.cause, sent=error.sent) from error

    async def _download(self, digest: str, start: int, end: int | None) -> AsyncGenerator[bytes, None]:
        server = await self._choose()
        headers = dict(server.headers)
        if start or end is not None:
            headers["range"] = f"bytes={start}-{'' if end is None else end - 1}"
        try:
            async with server.http.stream("GET", _url(server, digest), headers=headers) as response:
                if response.status == 416:
                    return
                if response.status not in (200, 206) or (response.status == 200 and start):
                    _raise(server, response.status, await response.read(_MAX_ERROR_BYTES), digest)
                async for piece in _read_pieces(response):
                    yield piece
        except TransportError as error:
            raise AgentUnreachableError(HUB_NAME, server.url, error.cause, sent=error.sent) from error


async def _chain(
    first: bytes, second: bytes, pieces: AsyncIterator[bytes], size_bytes: int | None
) -> AsyncGenerator[bytes, None]:
    """All pieces; raises InvalidRequestError if they are not of the announced size."""
    sent = len(first) + len(second)
    yield first
    yield second
    async for piece in pieces:
        sent += len(piece)
        if size_bytes is not None and sent > size_bytes:
            break
        yield piece
    if size_bytes not in (None, sent):
        raise InvalidRequestError("the file changed while it was sent", remedy="save it again")


async def _read_pieces(response: HttpStream) -> AsyncGenerator[bytes, None]:
    while True:
        try:
            async with asyncio.timeout(STALL_S):
                piece = await response.read_some()
        except TimeoutError:
            raise TransportError("", f"no content for {STALL_S:g} s", sent=True) from None
        if not piece:
            return
        yield piece


def _url(server: ArtifactServer, path: str) -> str:
    return f"{server.url.rstrip('/')}{PATH}" + (f"/{path}" if path else "")


def _read(server: ArtifactServer, reply: HttpResponse, status: int, digest: str = "") -> dict[str, Any]:
    if reply.status != status:
        _raise(server, reply.status, reply.body, digest)
    try:
        value = orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        cause = "it answered a request for artifacts with something else"
        raise AgentUnreachableError(HUB_NAME, server.url, cause, sent=True)
    return value


def _raise(server: ArtifactServer, status: int, body: bytes, digest: str) -> NoReturn:
    """Raise the error that an answer tells."""
    try:
        reply = orjson.loads(body)
    except orjson.JSONDecodeError:
        reply = {}
    facts = reply.get("data") if isinstance(reply, dict) else None
    if isinstance(facts, dict) and isinstance(facts.get("type"), str):
        message = str(reply.get("detail", ""))
        raise rebuild_error(RemoteFaultError(HUB_NAME, -32603, message, facts))
    if status in (401, 403):
        raise NotAuthenticatedError(
            "the hub rejects the token", remedy="set RETINUE_TOKEN, or: retinue context add"
        )
    if status == 404:
        raise UnknownArtifactError(
            digest, remedy="it is not stored there, or the hub is of a release without artifacts"
        )
    if status in _LOST:
        raise lost(HUB_NAME, server.url, status, body)
    raise RemoteFaultError(HUB_NAME, -32603, f"the hub answered {status} to a request for artifacts")


def _name_in(disposition: str) -> str | None:
    _, mark, name = disposition.partition("filename*=UTF-8''")
    return clean_name(unquote(name)) if mark else None
