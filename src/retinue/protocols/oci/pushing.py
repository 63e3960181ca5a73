"""Pure: pushing to a registry as flows: blobs that are missing, then the manifest that names them.

Distribution spec 1.1, "Push": monolithic (POST, then one PUT), and in chunks (POST, PATCH …, PUT) for
large content, since servers and proxies cap the body of one request.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, urlsplit

from retinue.core.errors import DigestMismatchError, RegistryRefusedError
from retinue.protocols.oci.artifacts import NewArtifact, Package, render_artifact
from retinue.protocols.oci.exchange import REDIRECTS, Flow, Request, Response, expect, read_location
from retinue.protocols.oci.flows import manifest_path
from retinue.protocols.oci.manifest import MANIFEST_TYPE, OCTETS_TYPE
from retinue.protocols.oci.reference import Reference, check_repository

CHUNK_BYTES = 2 * 1024 * 1024
"""Content up to this size goes in one request, larger content in chunks of it."""

MAX_CHUNK_BYTES = 64 * 1024 * 1024


def push(repository: str, tag: str, artifact: NewArtifact) -> Flow[str]:
    """Push a new artifact under a tag; gives its digest. Raises as ``push_package``."""
    return (yield from push_package(repository, tag, render_artifact(artifact)))


def push_package(repository: str, tag: str, package: Package) -> Flow[str]:
    """Push blobs and manifest byte for byte; gives the digest, which the registry must agree on.

    Raises RegistryRefusedError, DigestMismatchError when the registry stored something else.
    """
    reference = Reference(repository, tag=tag)
    for digest, content in package.blobs.items():
        yield from push_blob(repository, digest, content)
    media_type = package.manifest.media_type or MANIFEST_TYPE
    response = yield Request(
        "PUT",
        manifest_path(reference),
        {"content-type": media_type},
        package.manifest_bytes,
        what=str(reference),
        always_repeatable=True,
    )
    stored = expect(response, 201).headers.get("docker-content-digest", package.digest)
    if stored != package.digest:
        raise DigestMismatchError(str(reference), package.digest, stored)
    return package.digest


def push_blob(repository: str, digest: str, content: bytes, *, chunk_bytes: int = CHUNK_BYTES) -> Flow[None]:
    """Upload a blob unless the registry has it. Raises RegistryRefusedError."""
    response = yield Request("HEAD", f"/v2/{check_repository(repository)}/blobs/{digest}")
    if response.status == 200 or response.status in REDIRECTS:
        return  # a registry that keeps blobs elsewhere says where even to a HEAD
    response = yield Request("POST", f"/v2/{repository}/blobs/uploads/", body=b"")
    upload = read_location(expect(response, 202))
    rest = content
    if len(content) > chunk_bytes:
        upload = yield from _push_chunks(response, upload, content, chunk_bytes)
        rest = b""
    mark = "&" if urlsplit(upload).query else "?"
    response = yield Request(
        "PUT", f"{upload}{mark}digest={quote(digest, safe='')}", {"content-type": OCTETS_TYPE}, rest
    )
    expect(response, 201)


def _push_chunks(begun: Response, upload: str, content: bytes, chunk_bytes: int) -> Flow[str]:
    """Send all of the content by PATCH; gives the location that takes the final PUT."""
    size = max(chunk_bytes, _least_chunk(begun.headers))
    start = 0
    while start < len(content):
        chunk = content[start : start + size]
        last = start + len(chunk) - 1
        headers = {"content-type": OCTETS_TYPE, "content-range": f"{start}-{last}"}
        response = expect((yield Request("PATCH", upload, headers, chunk)), 202)
        taken = response.headers.get("range", f"0-{last}")
        if taken.removeprefix("bytes=") != f"0-{last}":
            raise RegistryRefusedError(
                response.registry, response.status, f"it kept bytes {taken[:40]} of an upload, not 0-{last}"
            )
        upload = read_location(response)
        start = last + 1
    return upload


def _least_chunk(headers: Mapping[str, str]) -> int:
    text = headers.get("oci-chunk-min-length", "")
    return min(int(text), MAX_CHUNK_BYTES) if text.isascii() and text.isdigit() else 0
