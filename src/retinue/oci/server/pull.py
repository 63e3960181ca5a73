"""The registry endpoint ``/v2/…`` for oras, skopeo, docker and seed 001: routes and the read side.

It implements "Pull" and "Content Discovery" of the distribution spec 1.1, and two extensions that save a
reading hub most requests (`retinue.oci.codec.catalog` and `bulk`). `retinue.oci.server.push` is the write
side. Reads are open, except to tokens limited to part of the mesh; a repository that a caller may not see is
answered as one that does not exist. Without a store, every write is answered
with UNSUPPORTED (P-02 … P-05).
"""

from __future__ import annotations

import asyncio
import re
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlencode

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from retinue.oci.codec.bulk import (
    BULK_PATH,
    BULK_TYPE,
    MAX_MANIFESTS_BYTES,
    MAX_WANTED_BYTES,
    parse_wanted,
    render_manifests,
)
from retinue.oci.codec.catalog import CATALOG_TYPE, Heads, render_heads
from retinue.oci.codec.changes import CHANGES_PATH, CHANGES_TYPE, WAIT_S, render_stamp
from retinue.oci.codec.manifest import INDEX_TYPE, OCTETS_TYPE
from retinue.oci.codec.reference import digest_of
from retinue.oci.codec.referrers import FILTERED, render_referrers
from retinue.oci.codec.saved_files import is_saved_files
from retinue.oci.codec.wire import PAGE_SIZE_LIMIT, render_next_link
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.server.logins import RegistryLogins, may_write
from retinue.oci.server.push import (
    CheckPublish,
    PushEndpoint,
    permit_all,
    require_full_view,
    require_write_access,
)
from retinue.oci.server.responses import (
    API_VERSION,
    JSON_TYPE,
    Handler,
    RegistryErrorResponse,
    check_digest,
    read_body,
    read_repository,
    read_target,
    with_error_responses,
)
from retinue.web.registry_tokens import TOKEN_PATH, RegistryTokens

_RANGE = re.compile(r"bytes=([0-9]{0,12})-([0-9]{0,12})")


KeepShown = Callable[[Request, Sequence[str]], Awaitable[Sequence[str]]]
"""Keeps those of some repositories that the caller of a request may see, in their order."""


_LOOK_S = 0.2
"""Seconds between two looks at the stamp of the registry, each of which is one stat call."""


_LISTED_S = 60.0
"""How long the pages of a catalog come from one list, because to walk 100,000 folders takes 1.6 s.

Writes through Retinue end it at once.
"""


async def show_all(request: Request, repositories: Sequence[str]) -> Sequence[str]:
    """Shows every repository to every caller."""
    return repositories


def routes(
    registry: LayoutRegistry,
    store: LayoutRegistry | None = None,
    keep_shown: KeepShown = show_all,
    *,
    is_member: Callable[[str], bool] = lambda _publisher: True,
    max_manifests_bytes: int = MAX_MANIFESTS_BYTES,
    tokens: RegistryTokens | None = None,
    check_publish: CheckPublish = permit_all,
) -> list[BaseRoute]:
    """Create the routes, with paths from ``/v2/`` on. With ``store``, mesh tokens may write.

    With ``store`` the routes must run behind `SecurityMiddleware`, and tokens limited to part of the mesh are
    rejected. ``keep_shown`` hides repositories from callers that may not write. ``is_member`` tells
    whether a caller on another machine still has a valid token. A bulk answer has at most
    ``max_manifests_bytes`` of manifests. With ``tokens`` it has a token endpoint and accepts its tokens.
    ``check_publish`` raises an error for a principal that may not push to, nor delete from, a repository.
    """
    logins = RegistryLogins(tokens)
    pull = _PullEndpoint(registry, keep_shown, store is not None, max_manifests_bytes, logins)

    def reading(handler: Handler) -> Handler:
        return with_error_responses(
            handler if store is None else require_full_view(logins.within_scope(handler))
        )

    every_method = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
    return [
        Route("/v2/_catalog", reading(pull.catalog), methods=["GET"]),
        Route(CHANGES_PATH, reading(pull.changes), methods=["GET"]),
        Route(BULK_PATH, reading(pull.manifests), methods=["POST"]),
        *([] if tokens is None else [Route(TOKEN_PATH, reading(logins.issue), methods=["GET"])]),
        *(
            []
            if store is None
            else _push_routes(PushEndpoint(store, is_member, logins, check_publish), logins)
        ),
        Route("/v2/{name:path}/tags/list", reading(pull.tags), methods=["GET"]),
        Route("/v2/{name:path}/manifests/{target}", reading(pull.manifest), methods=["GET"]),
        Route("/v2/{name:path}/blobs/{digest}", reading(pull.blob), methods=["GET"]),
        Route("/v2/{name:path}/referrers/{digest}", reading(pull.referrers), methods=["GET"]),
        Route("/v2", reading(pull.root), methods=["GET"]),
        Route("/v2/", reading(pull.root), methods=["GET"]),
        Route("/v2/{rest:path}", reading(pull.refuse), methods=every_method),
    ]


def _push_routes(push: PushEndpoint, logins: RegistryLogins) -> list[BaseRoute]:
    uploads, upload = "/v2/{name:path}/blobs/uploads/", "/v2/{name:path}/blobs/uploads/{upload}"
    manifest, blob = "/v2/{name:path}/manifests/{target}", "/v2/{name:path}/blobs/{digest}"

    def writing(handler: Handler) -> Handler:
        return require_write_access(logins.within_scope(handler), logins)

    handlers = [
        ("POST", uploads, push.begin_upload),
        ("POST", uploads.rstrip("/"), push.begin_upload),
        ("GET", upload, push.show_upload),
        ("PATCH", upload, push.add_to_upload),
        ("PUT", upload, push.end_upload),
        ("DELETE", upload, push.cancel_upload),
        ("PUT", manifest, push.put_manifest),
        ("DELETE", manifest, push.delete_manifest),
        ("DELETE", blob, push.delete_blob),
    ]
    return [
        Route(path, with_error_responses(writing(handler)), methods=[verb])
        for verb, path, handler in handlers
    ]


_LOOKED_AT = PAGE_SIZE_LIMIT + 1
"""Repositories of which it is asked at once whether a caller may see them."""


@dataclass(frozen=True, slots=True)
class _Page:
    names: list[str]
    has_more: bool


@dataclass(frozen=True, slots=True)
class _Listed:
    """The repositories at one stamp of the registry; ``until`` is a time on the monotonic clock."""

    names: list[str]
    stamp: str
    until: float


class _PullEndpoint:
    def __init__(
        self,
        registry: LayoutRegistry,
        keep_shown: KeepShown,
        writable: bool,
        max_manifests_bytes: int,
        logins: RegistryLogins,
    ) -> None:
        self._logins = logins
        self._registry = registry
        self._shows_some = keep_shown
        self._writable = writable
        self._max_manifests_bytes = max_manifests_bytes
        self._listed = _Listed([], "", 0.0)

    async def root(self, request: Request) -> Response:
        """GET /v2/: the first request of a client.

        docker and skopeo send a password only after a challenge here, so anonymous clients get one, as at
        Docker Hub. Reading needs no login.
        """
        if self._writable and not may_write(request):
            raise RegistryErrorResponse(
                "UNAUTHORIZED", "reading is open; writing requires a login", self._logins.challenge(request)
            )
        return Response(b"{}", media_type=JSON_TYPE, headers=API_VERSION)

    async def catalog(self, request: Request) -> Response:
        """GET /v2/_catalog: plain, or with the digests of all tags when the client accepts `CATALOG_TYPE`."""
        page = await self._cut_shown(request, await self._list_repositories(request))
        if CATALOG_TYPE not in request.headers.get("accept", ""):
            return _render_page(request, page, "repositories")
        heads = await self._registry.read_heads(page.names)
        return _render_page(request, page, "repositories", heads=heads)

    async def _cut_shown(self, request: Request, names: Sequence[str]) -> _Page:
        """One page of those of the names that the caller may see; looks at no more names than it needs."""
        limit, at = _page_size(request), _position_of(request, names)
        shown: list[str] = []
        while at < len(names) and len(shown) <= limit:
            shown += await self._keep_shown(request, names[at : at + _LOOKED_AT])
            at += _LOOKED_AT
            await asyncio.sleep(0)
        return _Page(shown[:limit], len(shown) > limit)

    async def _list_repositories(self, request: Request) -> list[str]:
        """All repositories. The pages after the first one are pages of one list, while nothing is written."""
        stamp, now = self._registry.generation(), time.monotonic()
        if "last" not in request.query_params or stamp != self._listed.stamp or now > self._listed.until:
            names = await self._registry.list_repositories()
            self._listed = _Listed(names, stamp, now + _LISTED_S)
        return self._listed.names

    async def manifests(self, request: Request) -> Response:
        """POST /v2/_manifests: many manifests by digest (extension)."""
        wanted = parse_wanted(await read_body(request, MAX_WANTED_BYTES, "a request for manifests"))
        shown = set(await self._keep_shown(request, wanted))
        readable = {name: digest for name, digest in wanted.items() if name in shown}
        manifests = await self._registry.find_manifests(readable, self._max_manifests_bytes)
        # one that is hidden is answered as one that is missing; those that are left out may be asked again
        answered = {name: manifests.get(name) for name in wanted if name in manifests or name not in shown}
        return Response(render_manifests(answered), headers={**API_VERSION, "content-type": BULK_TYPE})

    async def changes(self, request: Request) -> Response:
        """GET /v2/_changes: wait until the registry has another stamp (extension)."""
        after = request.query_params.get("after", "")
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                while self._registry.generation() == after:
                    await asyncio.sleep(_LOOK_S)
        headers = {**API_VERSION, "content-type": CHANGES_TYPE, "cache-control": "no-store"}
        return Response(render_stamp(self._registry.generation()), headers=headers)

    async def tags(self, request: Request) -> Response:
        """GET …/tags/list"""
        name = read_repository(request)
        tags = await self._list_tags(request, name)
        if not tags:
            raise RegistryErrorResponse("NAME_UNKNOWN", f"there is no repository {name}")
        limit, at = _page_size(request), _position_of(request, tags)
        page = _Page(tags[at : at + limit], len(tags) > at + limit)
        return _render_page(request, page, "tags", {"name": name})

    async def manifest(self, request: Request) -> Response:
        """GET …/manifests/<tag or digest>"""
        name, target = read_repository(request), read_target(request)
        stored = (
            await self._registry.find_manifest(name, target) if await self._shows(request, name) else None
        )
        if stored is None:
            if not await self._list_tags(request, name):
                raise RegistryErrorResponse("NAME_UNKNOWN", f"there is no repository {name}")
            raise RegistryErrorResponse("MANIFEST_UNKNOWN", f"{name} has no {target}")
        return _content(request, stored.content, stored.digest, stored.media_type)

    async def blob(self, request: Request) -> Response:
        """GET …/blobs/<digest>, with range requests."""
        name, digest = read_repository(request), check_digest(request.path_params["digest"])
        content = await self._registry.find_blob(name, digest) if await self._shows(request, name) else None
        if content is None:
            raise RegistryErrorResponse("BLOB_UNKNOWN", f"{name} has no {digest}")
        return _content(request, content, digest, OCTETS_TYPE, partly=True)

    async def referrers(self, request: Request) -> Response:
        """GET …/referrers/<digest>: an image index of the artifacts whose subject is the digest."""
        name, digest = read_repository(request), check_digest(request.path_params["digest"])
        artifact_type = request.query_params.get("artifactType")
        rows = []
        if await self._shows(request, name):
            rows = await self._registry.list_referrers(name, digest, artifact_type)
        headers = {**API_VERSION, "content-type": INDEX_TYPE}
        if artifact_type is not None:
            headers[FILTERED] = "artifactType"
        return Response(render_referrers(rows), headers=headers)

    async def _keep_shown(self, request: Request, names: Iterable[str]) -> Sequence[str]:
        # their digests are known to those only who were given them
        held = [name for name in names if not is_saved_files(name) or may_write(request)]
        return await self._shows_some(request, held)

    async def _shows(self, request: Request, name: str) -> bool:
        return bool(await self._keep_shown(request, [name]))

    async def _list_tags(self, request: Request, name: str) -> list[str]:
        return await self._registry.list_tags(name) if await self._shows(request, name) else []

    async def refuse(self, request: Request) -> Response:
        """Any other path or method."""
        if request.method in {"GET", "HEAD"}:
            raise RegistryErrorResponse("NAME_UNKNOWN", "there is nothing at this path")
        message = "this path does not support writing"
        if not self._writable:
            message = "this registry is read-only over HTTP; publish with: retinue publish"
        raise RegistryErrorResponse("UNSUPPORTED", message, {"allow": "GET, HEAD"})


def _content(
    request: Request, content: bytes, digest: str, media_type: str, *, partly: bool = False
) -> Response:
    """A response with content; its ETag is its digest. With ``partly`` it supports range requests."""
    headers = {**API_VERSION, "docker-content-digest": digest, "etag": f'"{digest}"'}
    if _is_cached(request, headers["etag"]):
        return Response(status_code=304, headers=headers)
    if partly:
        headers["accept-ranges"] = "bytes"
        if (part := _read_range(request, len(content))) is not None:
            first, last = part
            if first >= len(content):
                return Response(
                    status_code=416, headers={**headers, "content-range": f"bytes */{len(content)}"}
                )
            headers |= {"content-type": media_type, "content-range": f"bytes {first}-{last}/{len(content)}"}
            return Response(content[first : last + 1], 206, headers)
    # not media_type=, which adds a charset to text types
    headers |= {"content-type": media_type, "content-length": str(len(content))}
    return Response(b"" if request.method == "HEAD" else content, headers=headers)


def _is_cached(request: Request, etag: str) -> bool:
    asked = request.headers.get("if-none-match", "")
    return any(tag.strip().removeprefix("W/") == etag for tag in asked.split(","))


def _read_range(request: Request, size: int) -> tuple[int, int] | None:
    """First and last byte of a single-range request; None to send everything (RFC 9110, section 14.2)."""
    match = _RANGE.fullmatch(request.headers.get("range", "").strip())
    if match is None or request.method != "GET" or not (match[1] or match[2]):
        return None
    if not match[1]:  # suffix range
        return max(0, size - int(match[2])), size - 1
    first, last = int(match[1]), int(match[2]) if match[2] else size - 1
    return (first, min(last, size - 1)) if first <= last or first >= size else None


def _render_page(
    request: Request,
    page: _Page,
    key: str,
    extra: dict[str, str] | None = None,
    *,
    heads: Mapping[str, Heads] | None = None,
) -> Response:
    """One page of a sorted list: at most ``n`` names after ``last``, with a Link to the next page.

    With ``heads`` it is the extended catalog. Without ``n`` a page has a thousand names, because the client
    of seed 001 does not follow links.
    """
    headers = dict(API_VERSION)
    if page.names and page.has_more:
        query = urlencode({"n": _page_size(request), "last": page.names[-1]})
        headers["link"] = render_next_link(f"{request.url.path}?{query}")
    page_heads = {} if heads is None else {"heads": render_heads(page.names, heads)}
    body = orjson.dumps({**(extra or {}), key: page.names, **page_heads})
    headers["etag"] = f'"{digest_of(body)}"'
    if _is_cached(request, headers["etag"]):
        return Response(status_code=304, headers=headers)
    headers["content-type"] = JSON_TYPE if heads is None else CATALOG_TYPE
    return Response(body, headers=headers)


def _position_of(request: Request, names: Sequence[str]) -> int:
    """Where the page of a request begins in a sorted list."""
    return bisect_right(names, request.query_params.get("last", ""))


def _page_size(request: Request) -> int:
    text = request.query_params.get("n")
    if text is None:
        return PAGE_SIZE_LIMIT
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise RegistryErrorResponse("PAGINATION_NUMBER_INVALID", "n must be a number from 0 to 1000")
    return min(int(text), PAGE_SIZE_LIMIT)
