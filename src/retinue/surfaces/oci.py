"""The door of a registry: ``/v2/…`` as oras, skopeo, docker and seed 001 ask for it (P-02 … P-05).

Distribution spec 1.1, "Pull" and "Content Discovery", with two extensions that spare a reading hub most
requests (``catalog`` and ``bulk`` in the codec); ``oci_writing`` is the other side. Anybody reads.
Without a store nothing is written through this door: every write is refused with UNSUPPORTED.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlencode

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from retinue.protocols.oci.bulk import (
    BULK_PATH,
    BULK_TYPE,
    MAX_MANIFESTS_BYTES,
    MAX_WANTED_BYTES,
    parse_wanted,
    render_manifests,
)
from retinue.protocols.oci.catalog import CATALOG_TYPE, Catalog, Heads, render_heads
from retinue.protocols.oci.manifest import OCTETS_TYPE, StoredManifest
from retinue.protocols.oci.reference import digest_of
from retinue.protocols.oci.wire import PAGE_SIZE_LIMIT, render_next_link
from retinue.surfaces.oci_answers import (
    API_VERSION,
    JSON_TYPE,
    Handler,
    Refusal,
    answering,
    check_digest,
    read_body,
    read_repository,
    read_target,
)
from retinue.surfaces.oci_writing import RegistryStore, WritingDoor, for_known, for_readers, is_known
from retinue.surfaces.refusal import REGISTRY_CHALLENGE

_RANGE = re.compile(r"bytes=([0-9]{0,12})-([0-9]{0,12})")


class RegistryContents(Protocol):
    """What the door shows: a registry with its stored bytes (``drivers.layout.LayoutRegistry``)."""

    async def list_repositories(self) -> list[str]: ...

    async def read_catalog(self) -> Catalog: ...

    async def list_tags(self, repository: str) -> list[str]: ...

    async def find_manifest(self, repository: str, target: str) -> StoredManifest | None: ...

    async def find_manifests(
        self, wanted: Mapping[str, str], limit_bytes: int
    ) -> Mapping[str, bytes | None]: ...

    async def find_blob(self, repository: str, digest: str) -> bytes | None: ...


def routes(registry: RegistryContents, store: RegistryStore | None = None) -> list[BaseRoute]:
    """The routes of the door, paths from ``/v2/`` on; with ``store`` whoever is of the mesh may write.

    Then a ``Doorkeeper`` must stand before them, and a token that shows only a part of the mesh opens
    nothing here.
    """
    door = _Door(registry, writable=store is not None)

    def reading(handler: Handler) -> Handler:
        return answering(handler if store is None else for_readers(handler))

    every_method = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
    return [
        Route("/v2/_catalog", reading(door.catalog), methods=["GET"]),
        Route(BULK_PATH, reading(door.manifests), methods=["POST"]),
        *(_writing_routes(WritingDoor(store)) if store is not None else ()),
        Route("/v2/{name:path}/tags/list", reading(door.tags), methods=["GET"]),
        Route("/v2/{name:path}/manifests/{target}", reading(door.manifest), methods=["GET"]),
        Route("/v2/{name:path}/blobs/{digest}", reading(door.blob), methods=["GET"]),
        Route("/v2", reading(door.root), methods=["GET"]),
        Route("/v2/", reading(door.root), methods=["GET"]),
        Route("/v2/{rest:path}", reading(door.refuse), methods=every_method),
    ]


def _writing_routes(door: WritingDoor) -> list[BaseRoute]:
    uploads, upload = "/v2/{name:path}/blobs/uploads/", "/v2/{name:path}/blobs/uploads/{upload}"
    manifest, blob = "/v2/{name:path}/manifests/{target}", "/v2/{name:path}/blobs/{digest}"
    handlers = [
        ("POST", uploads, door.begin_upload),
        ("POST", uploads.rstrip("/"), door.begin_upload),
        ("GET", upload, door.show_upload),
        ("PATCH", upload, door.add_to_upload),
        ("PUT", upload, door.end_upload),
        ("DELETE", upload, door.cancel_upload),
        ("PUT", manifest, door.put_manifest),
        ("DELETE", manifest, door.delete_manifest),
        ("DELETE", blob, door.delete_blob),
    ]
    return [Route(path, answering(for_known(handler)), methods=[verb]) for verb, path, handler in handlers]


class _Door:
    def __init__(self, registry: RegistryContents, *, writable: bool) -> None:
        self._registry = registry
        self._writable = writable

    async def root(self, request: Request) -> Response:
        """What clients ask first. Only a challenge here makes docker and skopeo send their password at all,
        so an anonymous visitor gets one, as at Docker Hub; reading goes on without."""
        if self._writable and not is_known(request):
            challenge = {"www-authenticate": REGISTRY_CHALLENGE}
            raise Refusal("UNAUTHORIZED", "anybody may read; to write, log in", challenge)
        return Response(b"{}", media_type=JSON_TYPE, headers=API_VERSION)

    async def catalog(self, request: Request) -> Response:
        if CATALOG_TYPE not in request.headers.get("accept", ""):
            return _page(request, await self._registry.list_repositories(), "repositories")
        catalog = await self._registry.read_catalog()
        return _page(request, list(catalog.repositories), "repositories", heads=catalog.heads)

    async def manifests(self, request: Request) -> Response:
        """Our extension: many manifests, each by its digest, as `manifest` gives them one by one."""
        wanted = parse_wanted(await read_body(request, MAX_WANTED_BYTES, "a request for manifests"))
        found = await self._registry.find_manifests(wanted, MAX_MANIFESTS_BYTES)
        return Response(render_manifests(found), headers={**API_VERSION, "content-type": BULK_TYPE})

    async def tags(self, request: Request) -> Response:
        name = read_repository(request)
        tags = await self._registry.list_tags(name)
        if not tags:
            raise Refusal("NAME_UNKNOWN", f"there is no repository {name}")
        return _page(request, tags, "tags", {"name": name})

    async def manifest(self, request: Request) -> Response:
        name, target = read_repository(request), read_target(request)
        stored = await self._registry.find_manifest(name, target)
        if stored is None:
            if not await self._registry.list_tags(name):
                raise Refusal("NAME_UNKNOWN", f"there is no repository {name}")
            raise Refusal("MANIFEST_UNKNOWN", f"{name} has no {target}")
        return _content(request, stored.content, stored.digest, stored.media_type)

    async def blob(self, request: Request) -> Response:
        name, digest = read_repository(request), check_digest(request.path_params["digest"])
        content = await self._registry.find_blob(name, digest)
        if content is None:
            raise Refusal("BLOB_UNKNOWN", f"{name} has no {digest}")
        return _content(request, content, digest, OCTETS_TYPE, partly=True)

    async def refuse(self, request: Request) -> Response:
        if request.method in {"GET", "HEAD"}:
            raise Refusal("NAME_UNKNOWN", "there is nothing at this path")
        message = "nothing is written at this path"
        if not self._writable:
            message = "this registry is read here; publish with: retinue publish"
        raise Refusal("UNSUPPORTED", message, {"allow": "GET, HEAD"})


def _content(
    request: Request, content: bytes, digest: str, media_type: str, *, partly: bool = False
) -> Response:
    """Content under its digest, which is also its ETag; ``partly`` on demand a range of it."""
    headers = {**API_VERSION, "docker-content-digest": digest, "etag": f'"{digest}"'}
    if _has_it(request, headers["etag"]):
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
    # Not ``media_type=``, which would add a charset to text types.
    headers |= {"content-type": media_type, "content-length": str(len(content))}
    return Response(b"" if request.method == "HEAD" else content, headers=headers)


def _has_it(request: Request, etag: str) -> bool:
    asked = request.headers.get("if-none-match", "")
    return any(tag.strip().removeprefix("W/") == etag for tag in asked.split(","))


def _read_range(request: Request, size: int) -> tuple[int, int] | None:
    """First and last byte of the one range asked for; None to give everything (RFC 9110, 14.2)."""
    found = _RANGE.fullmatch(request.headers.get("range", "").strip())
    if found is None or request.method != "GET" or not (found[1] or found[2]):
        return None
    if not found[1]:  # the last so many bytes
        return max(0, size - int(found[2])), size - 1
    first, last = int(found[1]), int(found[2]) if found[2] else size - 1
    return (first, min(last, size - 1)) if first <= last or first >= size else None


def _page(
    request: Request,
    names: list[str],
    key: str,
    beside: dict[str, str] | None = None,
    *,
    heads: Mapping[str, Heads] | None = None,
) -> Response:
    """One page of a sorted list after ``last``, at most ``n`` names, with a Link to the next.

    With ``heads`` it is our own form of the catalog.
    Without ``n`` a page holds a thousand: seed 001's client asks once and follows no link.
    """
    limit = _page_size(request.query_params.get("n"))
    last = request.query_params.get("last", "")
    rest = [name for name in names if name > last]
    page = rest[:limit]
    headers = dict(API_VERSION)
    if page and len(rest) > limit:
        query = urlencode({"n": limit, "last": page[-1]})
        headers["link"] = render_next_link(f"{request.url.path}?{query}")
    told = {} if heads is None else {"heads": render_heads(page, heads)}
    body = orjson.dumps({**(beside or {}), key: page, **told})
    headers["etag"] = f'"{digest_of(body)}"'
    if _has_it(request, headers["etag"]):
        return Response(status_code=304, headers=headers)
    headers["content-type"] = JSON_TYPE if heads is None else CATALOG_TYPE
    return Response(body, headers=headers)


def _page_size(text: str | None) -> int:
    if text is None:
        return PAGE_SIZE_LIMIT
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise Refusal("PAGINATION_NUMBER_INVALID", "n is a number from 0 to 1000")
    return min(int(text), PAGE_SIZE_LIMIT)
