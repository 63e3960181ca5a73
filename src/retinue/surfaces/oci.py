"""The reading door of a registry: ``GET /v2/…`` as oras, skopeo and seed 001 ask for it (P-02 … P-05).

Distribution spec 1.1, "Pull" and "Content Discovery". Nothing is written through this door: publishing
goes through the state folder, so every write is refused with UNSUPPORTED. Its errors are the codes of
that spec, which no other surface speaks, and are therefore made here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol
from urllib.parse import urlencode

import orjson
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from retinue.core.errors import InvalidReferenceError, RetinueError
from retinue.protocols.oci.manifest import OCTETS_TYPE, StoredManifest
from retinue.protocols.oci.reference import is_digest, is_repository, is_tag
from retinue.protocols.oci.wire import PAGE_SIZE_LIMIT, ErrorCode, render_error, render_next_link

_JSON = "application/json"
_API_VERSION = {"docker-distribution-api-version": "registry/2.0"}
_STATUS: dict[ErrorCode, int] = {
    "NAME_UNKNOWN": 404,
    "NAME_INVALID": 400,
    "MANIFEST_UNKNOWN": 404,
    "BLOB_UNKNOWN": 404,
    "DIGEST_INVALID": 400,
    "TAG_INVALID": 400,
    "PAGINATION_NUMBER_INVALID": 400,
    "UNSUPPORTED": 405,
    "UNKNOWN": 500,
}
_log = structlog.get_logger(__name__)


class RegistryContents(Protocol):
    """What the door shows: a registry with its stored bytes (``drivers.layout.LayoutRegistry``)."""

    async def list_repositories(self) -> list[str]: ...

    async def list_tags(self, repository: str) -> list[str]: ...

    async def find_manifest(self, repository: str, target: str) -> StoredManifest | None: ...

    async def find_blob(self, repository: str, digest: str) -> bytes | None: ...


class _Refusal(Exception):  # noqa: N818 - an answer of this door, never seen outside it
    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def routes(registry: RegistryContents) -> list[BaseRoute]:
    """The routes of the door, paths from ``/v2/`` on."""
    door = _Door(registry)
    every_method = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
    return [
        Route("/v2/_catalog", _answering(door.catalog), methods=["GET"]),
        Route("/v2/{name:path}/tags/list", _answering(door.tags), methods=["GET"]),
        Route("/v2/{name:path}/manifests/{target}", _answering(door.manifest), methods=["GET"]),
        Route("/v2/{name:path}/blobs/{digest}", _answering(door.blob), methods=["GET"]),
        Route("/v2", _answering(door.root), methods=["GET"]),
        Route("/v2/", _answering(door.root), methods=["GET"]),
        Route("/v2/{rest:path}", _answering(door.refuse), methods=every_method),
    ]


class _Door:
    def __init__(self, registry: RegistryContents) -> None:
        self._registry = registry

    async def root(self, request: Request) -> Response:
        return Response(b"{}", media_type=_JSON, headers=_API_VERSION)

    async def catalog(self, request: Request) -> Response:
        names = await self._registry.list_repositories()
        return _page(request, names, "repositories")

    async def tags(self, request: Request) -> Response:
        name = _repository(request)
        tags = await self._registry.list_tags(name)
        if not tags:
            raise _Refusal("NAME_UNKNOWN", f"there is no repository {name}")
        return _page(request, tags, "tags", {"name": name})

    async def manifest(self, request: Request) -> Response:
        name, target = _repository(request), request.path_params["target"]
        if ":" in target and not is_digest(target):
            raise _Refusal("DIGEST_INVALID", "a digest is sha256: and 64 lower-case hex digits")
        if ":" not in target and not is_tag(target):
            raise _Refusal("TAG_INVALID", "a tag is up to 128 letters, digits, . _ and -")
        stored = await self._registry.find_manifest(name, target)
        if stored is None:
            if not await self._registry.list_tags(name):
                raise _Refusal("NAME_UNKNOWN", f"there is no repository {name}")
            raise _Refusal("MANIFEST_UNKNOWN", f"{name} has no {target}")
        return _content(request, stored.content, stored.digest, stored.media_type)

    async def blob(self, request: Request) -> Response:
        name, digest = _repository(request), request.path_params["digest"]
        if not is_digest(digest):
            raise _Refusal("DIGEST_INVALID", "a digest is sha256: and 64 lower-case hex digits")
        content = await self._registry.find_blob(name, digest)
        if content is None:
            raise _Refusal("BLOB_UNKNOWN", f"{name} has no {digest}")
        return _content(request, content, digest, OCTETS_TYPE)

    async def refuse(self, request: Request) -> Response:
        if request.method in {"GET", "HEAD"}:
            raise _Refusal("NAME_UNKNOWN", "there is nothing at this path")
        raise _Refusal("UNSUPPORTED", "this registry is read here; publish with: retinue publish")


def _answering(
    handler: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """Turn the refusals of a handler, and what the registry raises, into error bodies."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except _Refusal as refusal:
            return _error(refusal.code, refusal.message)
        except InvalidReferenceError as error:
            return _error("NAME_INVALID", error.message)
        except RetinueError as error:
            # The message may name files of this machine: it goes to the log, not to the caller.
            _log.warning("registry door failed", path=request.url.path, error=error.message)
            return _error("UNKNOWN", "the registry cannot read this; its log says why")

    return answer


def _error(code: ErrorCode, message: str) -> Response:
    status = _STATUS[code]
    headers = {**_API_VERSION, "allow": "GET, HEAD"} if status == 405 else _API_VERSION
    return Response(render_error(code, message), status, headers, _JSON)


def _repository(request: Request) -> str:
    name: str = request.path_params["name"]
    if not is_repository(name):
        raise _Refusal("NAME_INVALID", "no repository can have this name")
    return name


def _content(request: Request, content: bytes, digest: str, media_type: str) -> Response:
    """Content under its digest, which is also its ETag."""
    etag = f'"{digest}"'
    headers = {**_API_VERSION, "docker-content-digest": digest, "etag": etag}
    asked = request.headers.get("if-none-match", "")
    if any(tag.strip().removeprefix("W/") == etag for tag in asked.split(",")):
        return Response(status_code=304, headers=headers)
    # Not ``media_type=``, which would add a charset to text types.
    headers |= {"content-type": media_type, "content-length": str(len(content))}
    return Response(b"" if request.method == "HEAD" else content, headers=headers)


def _page(request: Request, names: list[str], key: str, beside: dict[str, str] | None = None) -> Response:
    """One page of a sorted list after ``last``, at most ``n`` names, with a Link to the next.

    Without ``n`` a page holds a thousand: seed 001's client asks once and follows no link.
    """
    limit = _page_size(request.query_params.get("n"))
    last = request.query_params.get("last", "")
    rest = [name for name in names if name > last]
    page = rest[:limit]
    headers = dict(_API_VERSION)
    if page and len(rest) > limit:
        query = urlencode({"n": limit, "last": page[-1]})
        headers["link"] = render_next_link(f"{request.url.path}?{query}")
    return Response(orjson.dumps({**(beside or {}), key: page}), headers=headers, media_type=_JSON)


def _page_size(text: str | None) -> int:
    if text is None:
        return PAGE_SIZE_LIMIT
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise _Refusal("PAGINATION_NUMBER_INVALID", "n is a number from 0 to 1000")
    return min(int(text), PAGE_SIZE_LIMIT)
