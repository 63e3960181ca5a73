"""The write side of the registry endpoint: uploads, manifests and deletion, with a mesh token.

It works with docker, skopeo, oras and Retinue's own client (`retinue.oci.server.logins`). Blobs are streamed
to a file; only manifests, at most 4 MiB, are held in memory (distribution spec 1.1, "Push" and "Content
Management").
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager

from starlette.requests import Request
from starlette.responses import Response

from retinue.core.call import Principal
from retinue.core.errors import DigestMismatchError, ReferenceNotFoundError
from retinue.oci.codec.manifest import (
    DOCKER_MANIFEST_TYPE,
    INDEX_TYPE,
    MANIFEST_TYPE,
    MAX_MANIFEST_BYTES,
    parse_manifest,
)
from retinue.oci.codec.reference import is_digest, is_repository
from retinue.oci.codec.referrers import SUBJECT, subject_of
from retinue.oci.codec.saved_files import is_saved_files
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.server.logins import RegistryLogins, may_write
from retinue.oci.server.responses import (
    API_VERSION,
    Handler,
    RegistryErrorResponse,
    check_digest,
    read_body,
    read_repository,
    read_target,
)
from retinue.web.issued_tokens import JOIN_CALLER
from retinue.web.security import identity_of

_RANGE = re.compile(r"(?:bytes[= ])?([0-9]{1,12})-([0-9]{1,12})(?:/.*)?")
_MANIFEST_TYPES = (MANIFEST_TYPE, DOCKER_MANIFEST_TYPE, INDEX_TYPE)


CheckPublish = Callable[[Principal, str], None]
"""Raises an error for a principal that may not push to a repository."""


def permit_all(principal: Principal, repository: str) -> None:
    """Lets every principal push to every repository."""


def require_full_view(handler: Handler) -> Handler:
    """Wrap a handler: reject tokens restricted to part of the mesh, because cards reveal all of it."""

    async def check(request: Request) -> Response:
        principal = identity_of(request.scope).principal
        if principal.agents or "mesh" not in principal.scopes:
            raise RegistryErrorResponse("DENIED", "this token gives no access to the registry")
        return await handler(request)

    return check


def require_write_access(handler: Handler, logins: RegistryLogins) -> Handler:
    """Wrap a handler: reject requests that may not write."""

    async def check(request: Request) -> Response:
        if not may_write(request):
            raise RegistryErrorResponse(
                "UNAUTHORIZED",
                "writing requires a login with a token as the password",
                logins.challenge(request),
            )
        if is_saved_files(request.path_params.get("name", "")):
            raise RegistryErrorResponse(
                "DENIED", "artifacts are saved at /artifacts: retinue artifacts put FILE"
            )
        return await handler(request)

    return check


class PushEndpoint:
    """The handlers of write requests; the caller wraps each in `require_write_access`."""

    def __init__(
        self,
        store: LayoutRegistry,
        is_member: Callable[[str], bool],
        logins: RegistryLogins,
        check_publish: CheckPublish,
    ) -> None:
        self._store = store
        self._logins = logins
        self._is_member = is_member
        self._check_publish = check_publish
        self._uploads = store.uploads

    async def begin_upload(self, request: Request) -> Response:
        """POST …/blobs/uploads/: mount from another repository, accept a whole blob, or begin an upload."""
        name, query = read_repository(request), request.query_params
        digest, source = query.get("mount", ""), query.get("from", "")
        if is_digest(digest) and is_repository(source) and await self._store.mount_blob(name, digest, source):
            return _stored(name, digest)
        upload = await self._uploads.begin(name)
        if "digest" in query:
            return await self._complete(request, name, upload)
        return _in_progress(name, upload, 0, 202)

    async def show_upload(self, request: Request) -> Response:
        """GET …/blobs/uploads/<id>: report the bytes received."""
        name, upload, size = self._find(request)
        return _in_progress(name, upload, size, 204)

    async def add_to_upload(self, request: Request) -> Response:
        """PATCH …/blobs/uploads/<id>: append the next chunk, or everything in one stream."""
        name, upload, size = self._find(request)
        self._check_start(request, name, upload, size)
        size = await self._append(request, name, upload)
        return _in_progress(name, upload, size, 202)

    async def end_upload(self, request: Request) -> Response:
        """PUT …/blobs/uploads/<id>?digest=…: append an optional last chunk and complete the blob."""
        name, upload, size = self._find(request)
        self._check_start(request, name, upload, size)
        return await self._complete(request, name, upload)

    async def cancel_upload(self, request: Request) -> Response:
        """DELETE …/blobs/uploads/<id>: cancel the upload."""
        name, upload, _ = self._find(request)
        with _known_upload():
            self._uploads.cancel(name, upload)
        return Response(status_code=204, headers=API_VERSION)

    async def put_manifest(self, request: Request) -> Response:
        """PUT …/manifests/<tag or digest>: store a manifest."""
        name, target = read_repository(request), read_target(request)
        media_type = request.headers.get("content-type", "").partition(";")[0].strip() or MANIFEST_TYPE
        if media_type not in _MANIFEST_TYPES:
            raise RegistryErrorResponse(
                "MANIFEST_INVALID", f"this registry accepts only {', '.join(_MANIFEST_TYPES)}"
            )
        raw = await read_body(request, MAX_MANIFEST_BYTES, "a manifest")
        self._check_publish(identity_of(request.scope).principal, name)
        publisher = _publisher_of(request)
        digest = await self._store.put_manifest(name, target, raw, media_type, publisher=publisher)
        if publisher is not None and not await asyncio.to_thread(self._is_member, publisher):
            # The token was revoked meanwhile. The revoking process deletes its other manifests.
            await asyncio.to_thread(self._store.remove_published_by, publisher)
            raise RegistryErrorResponse(
                "UNAUTHORIZED", "this token was revoked", self._logins.challenge(request)
            )
        created = _created(f"/v2/{name}/manifests/{digest}", digest)
        subject = None if media_type == INDEX_TYPE else subject_of(parse_manifest(raw, where=name))
        if subject is not None:
            created.headers[SUBJECT] = subject
        return created

    async def delete_manifest(self, request: Request) -> Response:
        """DELETE …/manifests/<tag or digest>: delete a tag, or a digest with all its tags."""
        name, target = read_repository(request), read_target(request)
        self._check_publish(identity_of(request.scope).principal, name)
        try:
            await self._store.delete(name, target)
        except ReferenceNotFoundError:
            raise RegistryErrorResponse("MANIFEST_UNKNOWN", f"{name} has no {target}") from None
        return Response(status_code=202, headers=API_VERSION)

    async def delete_blob(self, request: Request) -> Response:
        """DELETE …/blobs/<digest>.

        Not supported; a blob is removed with the last manifest that references it.
        """
        raise RegistryErrorResponse(
            "UNSUPPORTED", "delete the manifest; that removes its blobs", {"allow": "GET, HEAD"}
        )

    def _find(self, request: Request) -> tuple[str, str, int]:
        """Return repository, id and size of the upload in the path. Raises Refusal."""
        name, upload = read_repository(request), request.path_params["upload"]
        with _known_upload():
            return name, upload, self._uploads.size_bytes(name, upload)

    @staticmethod
    def _check_start(request: Request, name: str, upload: str, size: int) -> None:
        """Raise Refusal (416) for a chunk that does not start at the end of the previous one."""
        text = request.headers.get("content-range")
        if text is None:
            return
        match = _RANGE.fullmatch(text.strip())
        if match is None or int(match[1]) != size:
            headers = _progress_headers(name, upload, size)
            raise RegistryErrorResponse(
                "BLOB_UPLOAD_INVALID", f"the next chunk of this upload must start at byte {size}", headers
            )

    async def _append(self, request: Request, name: str, upload: str) -> int:
        async with aclosing(request.stream()) as chunks:
            with _known_upload():
                return await self._uploads.append(name, upload, chunks)

    async def _complete(self, request: Request, name: str, upload: str) -> Response:
        digest = check_digest(request.query_params.get("digest", ""))
        await self._append(request, name, upload)
        try:
            with _known_upload():
                await self._uploads.finish(name, upload, digest)
        except DigestMismatchError as error:
            raise RegistryErrorResponse(
                "DIGEST_INVALID", f"the uploaded content has digest {error.found}"
            ) from None
        return _stored(name, digest)


def _publisher_of(request: Request) -> str | None:
    """The caller on another machine whose token sent the request; None for programs of this state."""
    principal = identity_of(request.scope).principal
    return principal.id if principal.id.startswith(JOIN_CALLER) else None


@contextmanager
def _known_upload() -> Iterator[None]:
    """Refuse an upload that does not exist, or no longer: another request may end it at any time."""
    try:
        yield
    except ReferenceNotFoundError:
        raise RegistryErrorResponse("BLOB_UPLOAD_UNKNOWN", "there is no such upload") from None


def _in_progress(name: str, upload: str, size: int, status: int) -> Response:
    return Response(status_code=status, headers={**API_VERSION, **_progress_headers(name, upload, size)})


def _progress_headers(name: str, upload: str, size: int) -> dict[str, str]:
    """Headers that tell where an upload continues.

    The range of an empty one is 0-0, as in docker-registry.
    """
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
