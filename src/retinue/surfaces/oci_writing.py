"""The writing side of the registry door: uploads, manifests and deletion, for whoever sends a token.

Distribution spec 1.1, "Push" and "Content Management"; works with docker, skopeo, oras and our own
client. They all send the token as a password (Basic), which ``security`` reads. Bodies go to a file as
they arrive; a manifest, at most 4 MiB, is the only one held in memory.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from retinue.core.errors import DigestMismatchError, ReferenceNotFoundError
from retinue.protocols.oci.manifest import DOCKER_MANIFEST_TYPE, MANIFEST_TYPE, MAX_MANIFEST_BYTES
from retinue.protocols.oci.reference import is_digest, is_repository
from retinue.surfaces.oci_answers import (
    API_VERSION,
    Handler,
    Refusal,
    check_digest,
    read_body,
    read_repository,
    read_target,
)
from retinue.surfaces.refusal import REGISTRY_CHALLENGE
from retinue.surfaces.security import visitor_of

_RANGE = re.compile(r"(?:bytes[= ])?([0-9]{1,12})-([0-9]{1,12})(?:/.*)?")
_CHALLENGE = {"www-authenticate": REGISTRY_CHALLENGE}
_MANIFEST_TYPES = (MANIFEST_TYPE, DOCKER_MANIFEST_TYPE)


class UploadStore(Protocol):
    """Blobs that arrive piece by piece (``drivers.uploads.Uploads``).

    An unknown upload is a ReferenceNotFoundError.
    """

    async def begin(self, repository: str) -> str: ...

    def size_bytes(self, repository: str, upload: str) -> int: ...

    async def append(self, repository: str, upload: str, chunks: AsyncIterator[bytes]) -> int: ...

    async def finish(self, repository: str, upload: str, digest: str) -> None: ...

    def cancel(self, repository: str, upload: str) -> None: ...


class RegistryStore(Protocol):
    """What the door writes to (``drivers.layout.LayoutRegistry``)."""

    @property
    def uploads(self) -> UploadStore: ...

    async def mount_blob(self, repository: str, digest: str, source: str) -> bool: ...

    async def put_manifest(self, repository: str, target: str, raw: bytes, media_type: str) -> str: ...

    async def delete(self, repository: str, target: str) -> None: ...


def is_known(request: Request) -> bool:
    """Whether whoever asks sent a token that may write here: one of the mesh itself.

    What is published in a state's registry is called with a token of the mesh; whoever was only given a
    token must not get at that by publishing a card.
    """
    principal = visitor_of(request.scope).principal
    return principal.kind == "mesh" and "mesh" in principal.scopes


def for_readers(handler: Handler) -> Handler:
    """Let nobody through to ``handler`` whose token shows only a part of the mesh: cards show all of it."""

    async def check(request: Request) -> Response:
        principal = visitor_of(request.scope).principal
        if principal.agents or "mesh" not in principal.scopes:
            raise Refusal("DENIED", "this token is not good for the registry")
        return await handler(request)

    return check


def for_known(handler: Handler) -> Handler:
    """Let only a visitor with a token through to ``handler``."""

    async def check(request: Request) -> Response:
        if not is_known(request):
            raise Refusal("UNAUTHORIZED", "to write here, log in with a token as the password", _CHALLENGE)
        return await handler(request)

    return check


class WritingDoor:
    """The handlers; each is to be wrapped in ``for_known``."""

    def __init__(self, store: RegistryStore) -> None:
        self._store = store
        self._uploads = store.uploads

    async def begin_upload(self, request: Request) -> Response:
        """POST …/blobs/uploads/: mount from another repository, take the whole blob, or begin."""
        name, query = read_repository(request), request.query_params
        wanted, source = query.get("mount", ""), query.get("from", "")
        if is_digest(wanted) and is_repository(source) and await self._store.mount_blob(name, wanted, source):
            return _stored(name, wanted)
        upload = await self._uploads.begin(name)
        if "digest" in query:
            return await self._complete(request, name, upload)
        return _under_way(name, upload, 0, 202)

    async def show_upload(self, request: Request) -> Response:
        """GET …/blobs/uploads/<id>: how much is here."""
        name, upload, size = self._find(request)
        return _under_way(name, upload, size, 204)

    async def add_to_upload(self, request: Request) -> Response:
        """PATCH: the next chunk, or everything in one stream."""
        name, upload, size = self._find(request)
        self._check_start(request, name, upload, size)
        size = await self._append(request, name, upload)
        return _under_way(name, upload, size, 202)

    async def end_upload(self, request: Request) -> Response:
        """PUT …?digest=…: perhaps a last chunk, then the blob is whole."""
        name, upload, size = self._find(request)
        self._check_start(request, name, upload, size)
        return await self._complete(request, name, upload)

    async def cancel_upload(self, request: Request) -> Response:
        """DELETE …/blobs/uploads/<id>"""
        name, upload, _ = self._find(request)
        self._uploads.cancel(name, upload)
        return Response(status_code=204, headers=API_VERSION)

    async def put_manifest(self, request: Request) -> Response:
        """PUT …/manifests/<tag or digest>"""
        name, target = read_repository(request), read_target(request)
        media_type = request.headers.get("content-type", "").partition(";")[0].strip() or MANIFEST_TYPE
        if media_type not in _MANIFEST_TYPES:
            raise Refusal("MANIFEST_INVALID", f"this registry keeps {' and '.join(_MANIFEST_TYPES)} only")
        raw = await read_body(request, MAX_MANIFEST_BYTES, "a manifest")
        digest = await self._store.put_manifest(name, target, raw, media_type)
        return _created(f"/v2/{name}/manifests/{digest}", digest)

    async def delete_manifest(self, request: Request) -> Response:
        """DELETE …/manifests/<tag or digest>: a digest goes with all its tags, a tag alone."""
        name, target = read_repository(request), read_target(request)
        try:
            await self._store.delete(name, target)
        except ReferenceNotFoundError:
            raise Refusal("MANIFEST_UNKNOWN", f"{name} has no {target}") from None
        return Response(status_code=202, headers=API_VERSION)

    async def delete_blob(self, request: Request) -> Response:
        """Blobs are not deleted by hand: they go with the last manifest that names them."""
        raise Refusal("UNSUPPORTED", "delete the manifest; its content goes with it", {"allow": "GET, HEAD"})

    def _find(self, request: Request) -> tuple[str, str, int]:
        """Repository, id and size of the upload in the path. Raises Refusal."""
        name, upload = read_repository(request), request.path_params["upload"]
        try:
            return name, upload, self._uploads.size_bytes(name, upload)
        except ReferenceNotFoundError:
            raise Refusal("BLOB_UPLOAD_UNKNOWN", "there is no such upload") from None

    @staticmethod
    def _check_start(request: Request, name: str, upload: str, size: int) -> None:
        """Refuse a chunk that does not begin where the last one ended (416)."""
        text = request.headers.get("content-range")
        if text is None:
            return
        found = _RANGE.fullmatch(text.strip())
        if found is None or int(found[1]) != size:
            headers = _place(name, upload, size)
            raise Refusal("BLOB_UPLOAD_INVALID", f"the next byte of this upload is byte {size}", headers)

    async def _append(self, request: Request, name: str, upload: str) -> int:
        async with aclosing(request.stream()) as chunks:
            return await self._uploads.append(name, upload, chunks)

    async def _complete(self, request: Request, name: str, upload: str) -> Response:
        digest = check_digest(request.query_params.get("digest", ""))
        await self._append(request, name, upload)
        try:
            await self._uploads.finish(name, upload, digest)
        except DigestMismatchError as error:
            raise Refusal("DIGEST_INVALID", f"what was sent has digest {error.found}") from None
        return _stored(name, digest)


def _under_way(name: str, upload: str, size: int, status: int) -> Response:
    return Response(status_code=status, headers={**API_VERSION, **_place(name, upload, size)})


def _place(name: str, upload: str, size: int) -> dict[str, str]:
    """Where an upload goes on. Of an empty one the range is 0-0, as docker-registry has it."""
    return {
        "location": f"/v2/{name}/blobs/uploads/{upload}",
        "range": f"0-{max(0, size - 1)}",
        "docker-upload-uuid": upload,
    }


def _stored(name: str, digest: str) -> Response:
    return _created(f"/v2/{name}/blobs/{digest}", digest)


def _created(location: str, digest: str) -> Response:
    headers = {**API_VERSION, "location": location, "docker-content-digest": digest}
    return Response(status_code=201, headers=headers)
