"""Flows of the registry protocol: reading, deleting and pushing (OCI distribution spec 1.1).

A push uploads the missing blobs, then the manifest that names them. Small blobs are uploaded in one request
(POST, PUT), large ones in chunks (POST, PATCH …, PUT), because servers and proxies limit the body of a
request."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, urlsplit

import orjson

from retinue.core.errors import (
    ContentMissingError,
    DigestMismatchError,
    InvalidReferenceError,
    MalformedArtifactError,
    ReferenceNotFoundError,
    RegistryRefusedError,
)
from retinue.oci.codec.artifacts import (
    MAX_BLOB_BYTES,
    MAX_CONTENT_BYTES,
    Artifact,
    NewArtifact,
    Package,
    parse_envelope,
    render_artifact,
)
from retinue.oci.codec.catalog import CATALOG_TYPE, Catalog, Heads, parse_heads
from retinue.oci.codec.exchange import (
    REDIRECTS,
    BlobSink,
    Flow,
    RegistryRequest,
    Response,
    expect,
    origin_of,
    read_location,
    read_names,
    read_next_page,
)
from retinue.oci.codec.manifest import (
    DOCKER_MANIFEST_TYPE,
    MANIFEST_TYPE,
    OCTETS_TYPE,
    Descriptor,
    StoredManifest,
)
from retinue.oci.codec.reference import Reference, check_repository, choose_tag, digest_of, is_digest
from retinue.oci.codec.wire import PAGE_SIZE_LIMIT

CHUNK_BYTES = 2 * 1024 * 1024
"""Content up to this size is uploaded in one request, larger content in chunks of this size."""

MAX_CHUNK_BYTES = 64 * 1024 * 1024
MAX_PAGES = 1000
MAX_REDIRECTS = 3

_ACCEPT = {"accept": f"{MANIFEST_TYPE}, {DOCKER_MANIFEST_TYPE}"}
_ACCEPT_CATALOG = {"accept": f"{CATALOG_TYPE}, application/json"}
_ALLOW_DELETION = (
    "allow it in that registry; for docker-registry: "
    "storage.delete.enabled: true, or REGISTRY_STORAGE_DELETE_ENABLED=true"
)
_SMALL_BYTES = 4096
"""Minimum response limit, so that an error body fits even when the requested content is smaller."""


def read_catalog() -> Flow[Catalog]:
    """Read all repositories from ``_catalog``, page by page, in lexical order (P-02).

    A registry that supports `CATALOG_TYPE` adds the digests of their tags.
    """
    repositories: set[str] = set()
    heads: dict[str, Heads] = {}
    url: str | None = f"/v2/_catalog?n={PAGE_SIZE_LIMIT}"
    seen: set[str] = set()
    while url is not None and url not in seen and len(seen) < MAX_PAGES:
        seen.add(url)
        response = yield RegistryRequest(
            "GET", url, _ACCEPT_CATALOG, max_response_bytes=MAX_CONTENT_BYTES, what="the catalog"
        )
        if response.status == 400 and len(seen) == 1:
            # The registry may support only smaller pages: let it choose the size.
            url = "/v2/_catalog"
            continue
        repositories.update(read_names(response, "repositories"))
        if response.headers.get("content-type", "").startswith(CATALOG_TYPE):
            heads |= parse_heads(orjson.loads(response.body))
        url = read_next_page(response)
    return Catalog(tuple(sorted(repositories)), heads)


def list_tags(repository: str) -> Flow[list[str]]:
    """List all tags in lexical order; empty for an unknown or emptied repository (``tags: null``)."""
    tags, _ = yield from _list_tags(repository)
    return tags


def find_digest(reference: Reference) -> Flow[str | None]:
    """The current digest of a reference, without its content; None when it does not exist."""
    try:
        chosen = yield from _choose(reference)
    except ReferenceNotFoundError:
        return None
    response = yield RegistryRequest("HEAD", manifest_path(chosen), _ACCEPT, what=str(chosen))
    if response.status == 404:
        return None
    expect(response, 200)
    digest = response.headers.get("docker-content-digest", "")
    if is_digest(digest):
        return digest
    # The header is optional: compute the digest from the manifest.
    response = yield RegistryRequest("GET", manifest_path(chosen), _ACCEPT, what=str(chosen))
    return None if response.status == 404 else digest_of(expect(response, 200).body)


def pull(reference: Reference, *, known_digest: str | None = None) -> Flow[Artifact | None]:
    """Pull an artifact: the manifest, then its inline content or the blob, all verified
    (specification 2, doubt 6).

    None when the digest of the reference is still ``known_digest``.
    Raises ReferenceNotFoundError, DigestMismatchError, MalformedArtifactError, RegistryRefusedError.
    """
    chosen = yield from _choose(reference)
    headers = dict(_ACCEPT)
    if known_digest is not None:
        headers["if-none-match"] = f'"{known_digest}"'
    response = yield RegistryRequest("GET", manifest_path(chosen), headers, what=str(chosen))
    if response.status == 304 and known_digest is not None:
        return None
    if response.status == 404:
        raise ReferenceNotFoundError(response.registry, str(chosen))
    raw = expect(response, 200).body
    if known_digest is not None and digest_of(raw) == known_digest:
        return None
    envelope = parse_envelope(raw, where=str(chosen), tag=chosen.tag, wanted_digest=chosen.digest)
    content = envelope.inline_content()
    if content is None:
        content = yield from pull_blob(chosen.repository, envelope.layer, where=str(chosen))
    return envelope.open(content)


def pull_manifest(reference: Reference) -> Flow[StoredManifest]:
    """Pull the stored manifest of a reference, whatever it describes.

    Raises ReferenceNotFoundError, DigestMismatchError, RegistryRefusedError.
    """
    chosen = yield from _choose(reference)
    response = yield RegistryRequest("GET", manifest_path(chosen), _ACCEPT, what=str(chosen))
    if response.status == 404:
        raise ReferenceNotFoundError(response.registry, str(chosen))
    raw = expect(response, 200).body
    digest = digest_of(raw)
    if chosen.digest is not None and chosen.digest != digest:
        raise DigestMismatchError(str(chosen), chosen.digest, digest)
    media_type = response.headers.get("content-type", "").partition(";")[0].strip()
    return StoredManifest(digest, media_type or MANIFEST_TYPE, raw)


def pull_blob(repository: str, blob: Descriptor, *, where: str) -> Flow[bytes]:
    """Pull the content of a descriptor, following redirects, and verify it.

    Raises ContentMissingError, DigestMismatchError, MalformedArtifactError, RegistryRefusedError.
    """
    content = (yield from _request_blob(repository, blob, where)).body
    digest = digest_of(content)
    if digest != blob.digest:
        raise DigestMismatchError(where, blob.digest, digest)
    return content


def copy_blob(repository: str, blob: Descriptor, sink: BlobSink, *, where: str) -> Flow[None]:
    """Give the content of a descriptor to a sink as it comes, following redirects; the sink verifies it.

    Raises ContentMissingError, MalformedArtifactError, RegistryRefusedError, and what the sink raises.
    """
    yield from _request_blob(repository, blob, where, sink)


def _request_blob(
    repository: str, blob: Descriptor, where: str, sink: BlobSink | None = None
) -> Flow[Response]:
    if blob.size_bytes > MAX_BLOB_BYTES:
        raise MalformedArtifactError(
            where, f"its content of {blob.size_bytes:,} bytes exceeds the limit of {MAX_BLOB_BYTES:,}"
        )
    # The size in the manifest is the limit: a longer response is cut off.
    cap = max(blob.size_bytes, _SMALL_BYTES)
    response = yield RegistryRequest(
        "GET", f"/v2/{repository}/blobs/{blob.digest}", max_response_bytes=cap, what=where, sink=sink
    )
    for _ in range(MAX_REDIRECTS):
        if response.status not in REDIRECTS:
            break
        # Large registries redirect to blob storage; the digest is verified all the same.
        there = next_host(response)
        response = yield RegistryRequest("GET", there, max_response_bytes=cap, what=where, sink=sink)
    if response.status == 404:
        raise ContentMissingError(where, blob.digest)
    return expect(response, 200)


def delete(reference: Reference) -> Flow[None]:
    """Delete a tag or digest.

    docker-registry 2 deletes only by digest, so it removes the manifest with all its tags; version 3 removes
    the tag alone.
    Raises ReferenceNotFoundError, RegistryRefusedError (with the setting to change if deletion is disabled).
    """
    if reference.target is None:
        raise InvalidReferenceError(str(reference), "a deletion needs a tag or a digest")
    response = yield RegistryRequest("DELETE", manifest_path(reference))
    if response.status in {400, 405} and reference.digest is None:
        digest = yield from find_digest(reference)
        if digest is None:
            raise ReferenceNotFoundError(response.registry, str(reference))
        response = yield RegistryRequest("DELETE", manifest_path(reference.at(digest)))
    if response.status == 404:
        raise ReferenceNotFoundError(response.registry, str(reference))
    if response.status == 405:
        detail = f"it does not delete {reference}"
        raise RegistryRefusedError(response.registry, 405, detail, remedy=_ALLOW_DELETION)
    expect(response, 200, 202, 204)


def push(repository: str, tag: str, artifact: NewArtifact) -> Flow[str]:
    """Push a new artifact under a tag; returns its digest. Raises what `push_package` raises."""
    return (yield from push_package(repository, tag, render_artifact(artifact)))


def push_package(repository: str, tag: str, package: Package) -> Flow[str]:
    """Push blobs and manifest byte for byte; returns the digest.

    Raises RegistryRefusedError, DigestMismatchError when the registry reports another digest.
    """
    reference = Reference(repository, tag=tag)
    for digest, content in package.blobs.items():
        yield from push_blob(repository, digest, content)
    media_type = package.manifest.media_type or MANIFEST_TYPE
    response = yield RegistryRequest(
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
    response = yield RegistryRequest("HEAD", f"/v2/{check_repository(repository)}/blobs/{digest}")
    if response.status == 200 or response.status in REDIRECTS:
        return  # registries with external blob storage redirect HEAD requests too
    response = yield RegistryRequest("POST", f"/v2/{repository}/blobs/uploads/", body=b"")
    upload = read_location(expect(response, 202))
    rest = content
    if len(content) > chunk_bytes:
        upload = yield from _push_chunks(response, upload, content, chunk_bytes)
        rest = b""
    mark = "&" if urlsplit(upload).query else "?"
    response = yield RegistryRequest(
        "PUT", f"{upload}{mark}digest={quote(digest, safe='')}", {"content-type": OCTETS_TYPE}, rest
    )
    expect(response, 201)


def manifest_path(reference: Reference) -> str:
    """The path of the manifest of a reference with tag or digest."""
    return f"/v2/{reference.repository}/manifests/{reference.target}"


def _list_tags(repository: str) -> Flow[tuple[list[str], str]]:
    """List the tags, and the origin of the registry that answered."""
    tags: set[str] = set()
    registry = ""
    url: str | None = f"/v2/{check_repository(repository)}/tags/list"
    seen: set[str] = set()
    while url is not None and url not in seen and len(seen) < MAX_PAGES:
        seen.add(url)
        response = yield RegistryRequest("GET", url, what=f"the tags of {repository}")
        registry = response.registry
        if response.status == 404:
            break
        tags.update(read_names(response, "tags"))
        url = read_next_page(response)
    return sorted(tags), registry


def _choose(reference: Reference) -> Flow[Reference]:
    """The reference, with the best tag if it has no target. Raises ReferenceNotFoundError."""
    if reference.target is not None:
        return reference
    tags, registry = yield from _list_tags(reference.repository)
    tag = choose_tag(tags)
    if tag is None:
        raise ReferenceNotFoundError(registry, str(reference))
    return reference.at(tag)


def next_host(response: Response) -> str:
    """The target of a redirect. Raises RegistryRefusedError for one from https to http."""
    there = read_location(response)
    if response.url.startswith("https:") and not there.startswith("https:"):
        raise RegistryRefusedError(
            response.registry, response.status, f"it redirects from https to {origin_of(there)}"
        )
    return there


def _push_chunks(begun: Response, upload: str, content: bytes, chunk_bytes: int) -> Flow[str]:
    """Send all content by PATCH; returns the location for the final PUT."""
    size = max(chunk_bytes, _min_chunk(begun.headers))
    start = 0
    while start < len(content):
        chunk = content[start : start + size]
        last = start + len(chunk) - 1
        headers = {"content-type": OCTETS_TYPE, "content-range": f"{start}-{last}"}
        response = expect((yield RegistryRequest("PATCH", upload, headers, chunk)), 202)
        taken = response.headers.get("range", f"0-{last}")
        if taken.removeprefix("bytes=") != f"0-{last}":
            raise RegistryRefusedError(
                response.registry,
                response.status,
                f"it stored bytes {taken[:40]} of an upload instead of 0-{last}",
            )
        upload = read_location(response)
        start = last + 1
    return upload


def _min_chunk(headers: Mapping[str, str]) -> int:
    text = headers.get("oci-chunk-min-length", "")
    return min(int(text), MAX_CHUNK_BYTES) if text.isascii() and text.isdigit() else 0
