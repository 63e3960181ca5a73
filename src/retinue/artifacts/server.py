"""``/artifacts``: save a file, read it by its digest and by range, list and delete (specification 10.8).

Whoever holds a digest may read its content, if the process accepts the caller at all: a link is passed in
arguments and results, and a digest cannot be guessed by anybody who does not know the content. A save needs a
token. A caller lists and deletes what it has saved; the mesh itself, with the token of the state, everything.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any
from urllib.parse import unquote

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from retinue.artifacts.codec import (
    DIGEST_HEADER,
    MAX_RUN_CHARACTERS,
    NAME_HEADER,
    RUN_HEADER,
    foreign_headers,
    is_matching,
    is_satisfiable,
    parse_range,
    render_content_range,
    render_row,
)
from retinue.core.artifact_links import PATH, is_media_type
from retinue.core.call import Principal
from retinue.core.errors import (
    InvalidRequestError,
    NotAllowedError,
    NotAuthenticatedError,
    RetinueError,
    UnsupportedMediaTypeError,
)
from retinue.storage.artifacts.index import StoredArtifact
from retinue.storage.artifacts.store import StoredArtifacts
from retinue.web.disconnect import PiecesResponse
from retinue.web.error_table import facts_of, rest_fault
from retinue.web.rejections import Rejection
from retinue.web.security import identity_of

MAX_LISTED = 1_000

_UNKNOWN_TYPE = "application/octet-stream"

Handler = Callable[[Request], Awaitable[Response]]


def routes(open_store: Callable[[], StoredArtifacts]) -> list[BaseRoute]:
    """The routes, which must run behind `SecurityMiddleware`; ``open_store`` is called at the first use."""
    endpoint = ArtifactEndpoint(open_store)
    return [
        Route(PATH, SaveApp(open_store), methods=["POST"]),
        Route(PATH, with_errors(endpoint.list_saved), methods=["GET"]),
        Route(f"{PATH}/collect", with_errors(endpoint.collect), methods=["POST"]),
        Route(f"{PATH}/{{digest}}", with_errors(endpoint.read), methods=["GET", "HEAD"]),
        Route(f"{PATH}/{{digest}}/holders", with_errors(endpoint.show), methods=["GET"]),
        Route(f"{PATH}/{{digest}}", with_errors(endpoint.delete), methods=["DELETE"]),
    ]


def sees_all(caller: Principal) -> bool:
    """Whether the caller is the mesh itself, which lists and deletes every artifact."""
    return caller.kind == "mesh" and "mesh" in caller.scopes and not caller.agents


class SaveApp:
    """``POST /artifacts``: the body is the content, its media type the Content-Type."""

    def __init__(self, open_store: Callable[[], StoredArtifacts]) -> None:
        self._open_store = open_store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            link = await self._save(request)
        except ClientDisconnect:
            return
        except RetinueError as error:
            # a client that reads only after it has sent everything sees the answer, too
            await Rejection(scope, receive, send).answer(error, drain=True)
            return
        digest = link["artifact"]
        headers = {"location": f"{PATH}/{digest}", "etag": f'"{digest}"'}
        await Response(orjson.dumps(link), 201, headers, "application/json")(scope, receive, send)

    async def _save(self, request: Request) -> dict[str, object]:
        caller = identity_of(request.scope).principal
        if caller.kind == "anonymous":
            raise NotAuthenticatedError(
                "saving an artifact needs a token", remedy="send a token: retinue token new"
            )
        headers = request.headers
        media_type = headers.get("content-type", "").strip() or None
        if media_type is not None and media_type.startswith("multipart/"):
            raise UnsupportedMediaTypeError(
                "the body is the file itself, and no form", remedy="send the bytes"
            )
        if media_type is not None and not is_media_type(media_type):
            media_type = media_type.partition(";")[0].strip()
        length = headers.get("content-length", "")
        async with aclosing(_pieces(request)) as pieces:
            artifact = await self._open_store().save(
                pieces,
                media_type,
                caller=caller.id,
                name=unquote(headers.get(NAME_HEADER, "")) or request.query_params.get("name"),
                run=headers.get(RUN_HEADER, "")[:MAX_RUN_CHARACTERS] or None,
                digest=headers.get(DIGEST_HEADER) or None,
                size_bytes=int(length) if length.isdecimal() else None,
            )
        return artifact.to_json()


class ArtifactEndpoint:
    """The other requests."""

    def __init__(self, open_store: Callable[[], StoredArtifacts]) -> None:
        self._open_store = open_store

    async def read(self, request: Request) -> Response:
        """GET, HEAD …/<digest>: the content, or a range of it, as a foreign file."""
        store, digest = self._open_store(), request.path_params["digest"]
        artifact = await store.find(digest)
        size = artifact.size or 0
        headers = foreign_headers(digest, artifact.name)
        if is_matching(request.headers.get("if-none-match"), digest):
            return Response(status_code=304, headers=headers)
        # not media_type=, which adds a charset to text types
        headers["content-type"] = artifact.media_type if is_media_type(artifact.media_type) else _UNKNOWN_TYPE
        condition = request.headers.get("if-range")
        is_current = condition is None or condition.strip() == headers["etag"]
        part = parse_range(request.headers.get("range"), size) if is_current else None
        if request.method == "HEAD" or part is None:
            headers["content-length"] = str(size)
            if request.method == "HEAD":
                return Response(headers=headers)
            return await PiecesResponse.begin(store.open(digest), headers=headers)
        if not is_satisfiable(part, size):
            return Response(status_code=416, headers={**headers, "content-range": f"bytes */{size}"})
        headers |= {
            "content-length": str(part.end - part.start),
            "content-range": render_content_range(part, size),
        }
        return await PiecesResponse.begin(store.open(digest, part.start, part.end), 206, headers)

    async def list_saved(self, request: Request) -> Response:
        """GET /artifacts: those that the caller has saved, newest first; with ``all=1`` every artifact."""
        caller, query = identity_of(request.scope).principal, request.query_params
        wants_all = query.get("all") == "1"
        if wants_all and not sees_all(caller):
            raise NotAllowedError(
                "this token lists its own artifacts only", remedy="use the token of the hub's state"
            )
        whose = None if wants_all else caller.id
        body = await list_artifacts(
            self._open_store(),
            whose,
            after=_number(query.get("after")),
            limit=_limit(query.get("limit")),
        )
        return Response(orjson.dumps(body), media_type="application/json")

    async def show(self, request: Request) -> Response:
        """GET …/<digest>/holders: the link, with the savers if the caller may see them, and its runs."""
        caller, digest = identity_of(request.scope).principal, request.path_params["digest"]
        row = await show_artifact(self._open_store(), digest)
        if not sees_all(caller):
            row["callers"] = [caller_id for caller_id in row["callers"] if caller_id == caller.id]
        return Response(orjson.dumps(row), media_type="application/json")

    async def delete(self, request: Request) -> Response:
        """DELETE …/<digest>: end the hold of the caller; with ``all=1`` that of every saver."""
        caller, digest = identity_of(request.scope).principal, request.path_params["digest"]
        for_all = request.query_params.get("all") == "1"
        if for_all and not sees_all(caller):
            raise NotAllowedError(
                "this token deletes its own artifacts only", remedy="use the token of the hub's state"
            )
        is_gone = await self._open_store().delete(digest, caller=None if for_all else caller.id)
        return Response(orjson.dumps({"artifact": digest, "deleted": is_gone}), media_type="application/json")

    async def collect(self, request: Request) -> Response:
        """POST …/collect: delete now what nothing holds any more."""
        if not sees_all(identity_of(request.scope).principal):
            raise NotAllowedError(
                "this token may not delete what others have saved", remedy="use the token of the hub's state"
            )
        collected = await self._open_store().collect()
        body = {"count": collected.count, "bytes": collected.size_bytes}
        return Response(orjson.dumps(body), media_type="application/json")


async def list_artifacts(
    store: StoredArtifacts, caller: str | None, *, after: float | None = None, limit: int = 100
) -> dict[str, Any]:
    """The artifacts that a caller has saved, or all, newest first, with their number, bytes and quota."""
    rows = await store.list_all(caller=caller, after=after, limit=limit)
    count, size_bytes = await store.measure(caller)
    quota = store.limits.quota_bytes if caller is None else store.limits.caller_bytes
    return {
        "artifacts": [_render(row) for row in rows],
        "count": count,
        "bytes": size_bytes,
        "quota_bytes": quota,
    }


async def show_artifact(store: StoredArtifacts, digest: str) -> dict[str, Any]:
    """The link of an artifact, when and by whom it was saved, and whether a run holds it."""
    row = _render(await store.show(digest))
    return {**row, "is_held_by_run": await store.is_held_by_run(digest)}


def with_errors(handler: Handler) -> Handler:
    """Wrap a handler: an error becomes its REST form, with its facts."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except RetinueError as error:
            fault = rest_fault(error)
            body = {**fault.body, "data": facts_of(error)}
            return Response(orjson.dumps(body), fault.status, fault.headers, "application/json")

    return answer


async def _pieces(request: Request) -> AsyncGenerator[bytes, None]:
    async for piece in request.stream():
        yield piece


def _render(row: StoredArtifact) -> dict[str, Any]:
    return render_row(
        row.digest,
        row.size_bytes,
        row.media_type,
        row.name,
        stored_at=row.stored_at,
        saved_at=row.saved_at,
        callers=row.callers,
    )


def _number(text: str | None) -> float | None:
    with suppress(ValueError):
        return None if text is None else float(text)
    raise InvalidRequestError("after is no number", remedy="give stored_at of the last row")


def _limit(text: str | None) -> int:
    if text is None:
        return 100
    if not text.isdecimal() or not 0 < int(text[:9]) <= MAX_LISTED:
        raise InvalidRequestError(f"limit is no number from 1 to {MAX_LISTED:,}", remedy="leave it out")
    return int(text)
