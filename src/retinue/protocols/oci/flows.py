"""Pure: reading from a registry and deleting in it, as flows; ``pushing`` has the other direction.

Distribution spec 1.1; FACTS 3, B1 has what docker-registry does beside it.
"""

from __future__ import annotations

import orjson

from retinue.core.errors import (
    ContentMissingError,
    DigestMismatchError,
    InvalidReferenceError,
    MalformedArtifactError,
    ReferenceNotFoundError,
    RegistryRefusedError,
)
from retinue.protocols.oci.artifacts import MAX_BLOB_BYTES, MAX_CONTENT_BYTES, Artifact, parse_envelope
from retinue.protocols.oci.catalog import CATALOG_TYPE, Catalog, Heads, parse_heads
from retinue.protocols.oci.exchange import (
    REDIRECTS,
    Flow,
    Request,
    Response,
    expect,
    origin_of,
    read_location,
    read_names,
    read_next_page,
)
from retinue.protocols.oci.manifest import (
    DOCKER_MANIFEST_TYPE,
    MANIFEST_TYPE,
    Descriptor,
    StoredManifest,
)
from retinue.protocols.oci.reference import Reference, check_repository, choose_tag, digest_of, is_digest
from retinue.protocols.oci.wire import PAGE_SIZE_LIMIT

MAX_PAGES = 1000
MAX_REDIRECTS = 3
_ACCEPT = {"accept": f"{MANIFEST_TYPE}, {DOCKER_MANIFEST_TYPE}"}
_ACCEPT_CATALOG = {"accept": f"{CATALOG_TYPE}, application/json"}
_SMALL_BYTES = 4096
"""Room for an error body where the content asked for is smaller than one."""


def read_catalog() -> Flow[Catalog]:
    """All repositories of ``_catalog``, page by page, in lexical order (P-02).

    A registry that knows `CATALOG_TYPE` says as well what their tags mean.
    """
    found: set[str] = set()
    heads: dict[str, Heads] = {}
    url: str | None = f"/v2/_catalog?n={PAGE_SIZE_LIMIT}"
    seen: set[str] = set()
    while url is not None and url not in seen and len(seen) < MAX_PAGES:
        seen.add(url)
        response = yield Request(
            "GET", url, _ACCEPT_CATALOG, max_response_bytes=MAX_CONTENT_BYTES, what="the catalog"
        )
        if response.status == 400 and len(seen) == 1:
            # A registry that serves smaller pages than ours says so by 400: let it choose the size.
            url = "/v2/_catalog"
            continue
        found.update(read_names(response, "repositories"))
        if response.headers.get("content-type", "").startswith(CATALOG_TYPE):
            heads |= parse_heads(orjson.loads(response.body))
        url = read_next_page(response)
    return Catalog(tuple(sorted(found)), heads)


def list_tags(repository: str) -> Flow[list[str]]:
    """All tags in lexical order; none for a repository that is unknown or was emptied (``tags: null``)."""
    tags, _ = yield from _list_tags(repository)
    return tags


def _list_tags(repository: str) -> Flow[tuple[list[str], str]]:
    """The tags, and the registry that was asked."""
    found: set[str] = set()
    registry = ""
    url: str | None = f"/v2/{check_repository(repository)}/tags/list"
    seen: set[str] = set()
    while url is not None and url not in seen and len(seen) < MAX_PAGES:
        seen.add(url)
        response = yield Request("GET", url, what=f"the tags of {repository}")
        registry = response.registry
        if response.status == 404:
            break
        found.update(read_names(response, "tags"))
        url = read_next_page(response)
    return sorted(found), registry


def find_digest(reference: Reference) -> Flow[str | None]:
    """The digest that a reference means now, without its content; None when there is nothing."""
    try:
        chosen = yield from _choose(reference)
    except ReferenceNotFoundError:
        return None
    response = yield Request("HEAD", manifest_path(chosen), _ACCEPT, what=str(chosen))
    if response.status == 404:
        return None
    expect(response, 200)
    digest = response.headers.get("docker-content-digest", "")
    if is_digest(digest):
        return digest
    # The header is optional: a registry without it is asked for the manifest itself.
    response = yield Request("GET", manifest_path(chosen), _ACCEPT, what=str(chosen))
    return None if response.status == 404 else digest_of(expect(response, 200).body)


def pull(reference: Reference, *, known_digest: str | None = None) -> Flow[Artifact | None]:
    """Pull an artifact: the manifest, then its inline content or the blob by digest, all verified (doubt 6).

    None when the reference still means ``known_digest``.
    Raises ReferenceNotFoundError, DigestMismatchError, MalformedArtifactError, RegistryRefusedError.
    """
    chosen = yield from _choose(reference)
    headers = dict(_ACCEPT)
    if known_digest is not None:
        headers["if-none-match"] = f'"{known_digest}"'
    response = yield Request("GET", manifest_path(chosen), headers, what=str(chosen))
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
    """The manifest of a tag or digest just as it is stored, whatever it describes.

    Raises ReferenceNotFoundError, DigestMismatchError, RegistryRefusedError.
    """
    chosen = yield from _choose(reference)
    response = yield Request("GET", manifest_path(chosen), _ACCEPT, what=str(chosen))
    if response.status == 404:
        raise ReferenceNotFoundError(response.registry, str(chosen))
    raw = expect(response, 200).body
    digest = digest_of(raw)
    if chosen.digest is not None and chosen.digest != digest:
        raise DigestMismatchError(str(chosen), chosen.digest, digest)
    media_type = response.headers.get("content-type", "").partition(";")[0].strip()
    return StoredManifest(digest, media_type or MANIFEST_TYPE, raw)


def pull_blob(repository: str, blob: Descriptor, *, where: str) -> Flow[bytes]:
    """The content of a descriptor, followed to where the registry keeps it, and verified.

    Raises ContentMissingError, DigestMismatchError, MalformedArtifactError, RegistryRefusedError.
    """
    if blob.size_bytes > MAX_BLOB_BYTES:
        raise MalformedArtifactError(where, f"its content of {blob.size_bytes:,} bytes is over the limit")
    # The manifest's word on the size is the cap: a registry that sends more is cut off.
    cap = max(blob.size_bytes, _SMALL_BYTES)
    response = yield Request(
        "GET", f"/v2/{repository}/blobs/{blob.digest}", max_response_bytes=cap, what=where
    )
    for _ in range(MAX_REDIRECTS):
        if response.status not in REDIRECTS:
            break
        # Large registries keep blobs elsewhere; what comes from there must hash to the digest all the same.
        response = yield Request("GET", _next_host(response), max_response_bytes=cap, what=where)
    if response.status == 404:
        raise ContentMissingError(where, blob.digest)
    content = expect(response, 200).body
    found = digest_of(content)
    if found != blob.digest:
        raise DigestMismatchError(where, blob.digest, found)
    return content


def delete(reference: Reference) -> Flow[None]:
    """Delete a tag or digest.

    docker-registry deletes by digest only: there the manifest goes, with every tag that it has.
    Raises ReferenceNotFoundError, RegistryRefusedError (also where deletion is switched off).
    """
    if reference.target is None:
        raise InvalidReferenceError(str(reference), "to delete, name a tag or a digest")
    response = yield Request("DELETE", manifest_path(reference))
    if response.status in {400, 405} and reference.digest is None:
        digest = yield from find_digest(reference)
        if digest is None:
            raise ReferenceNotFoundError(response.registry, str(reference))
        response = yield Request("DELETE", manifest_path(reference.at(digest)))
    if response.status == 404:
        raise ReferenceNotFoundError(response.registry, str(reference))
    expect(response, 200, 202, 204)


def _choose(reference: Reference) -> Flow[Reference]:
    """The reference with its best tag where it names none. Raises ReferenceNotFoundError."""
    if reference.target is not None:
        return reference
    tags, registry = yield from _list_tags(reference.repository)
    tag = choose_tag(tags)
    if tag is None:
        raise ReferenceNotFoundError(registry, str(reference))
    return reference.at(tag)


def _next_host(response: Response) -> str:
    """Where a redirect leads; never from an encrypted connection to an open one."""
    there = read_location(response)
    if response.url.startswith("https:") and not there.startswith("https:"):
        raise RegistryRefusedError(
            response.registry, response.status, f"it sends us on to {origin_of(there)}, unencrypted"
        )
    return there


def manifest_path(reference: Reference) -> str:
    """The path of the manifest that a reference with a target means."""
    return f"/v2/{reference.repository}/manifests/{reference.target}"
