"""Referrers: the artifacts of a repository that name a manifest as their subject (distribution spec 1.1).

A registry lists them at ``/v2/NAME/referrers/DIGEST`` as an image index. Without that endpoint, clients keep
the same index under the tag ``sha256-HEX``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from retinue.core.errors import MalformedArtifactError, RegistryRefusedError
from retinue.oci.codec.artifacts import Package
from retinue.oci.codec.exchange import Flow, RegistryRequest, expect
from retinue.oci.codec.flows import push_blob
from retinue.oci.codec.manifest import (
    EMPTY_CONFIG,
    INDEX_TYPE,
    MANIFEST_TYPE,
    MAX_MANIFEST_BYTES,
    Descriptor,
    Manifest,
    parse_descriptor,
    parse_object,
    render_descriptor,
)
from retinue.oci.codec.reference import Reference, check_repository, is_digest, referrers_tag

FILTERED = "oci-filters-applied"
"""Header of a response that has only the rows of the requested type."""

SUBJECT = "oci-subject"
"""Header of the response to a pushed manifest whose subject the registry has noted."""

MAX_REFERRERS = 1_000

INDEX_ATTEMPTS = 5
"""Writes of an index of referrers when others overwrite it at the same time."""

IsReplaced = Callable[[Descriptor], bool]
"""Whether a new referrer takes the place of this one."""


def subject_of(manifest: Manifest) -> str | None:
    """The digest of the manifest that this one names as its subject; None without one."""
    subject: Any = manifest.extra.get("subject")
    digest = subject.get("digest") if isinstance(subject, Mapping) else None
    return digest if isinstance(digest, str) and is_digest(digest) else None


def describe_referrer(manifest: Manifest, entry: Descriptor) -> Descriptor:
    """The row of a referrer: its descriptor with its artifact type and annotations."""
    artifact_type = manifest.artifact_type or manifest.config.media_type
    return Descriptor(
        entry.media_type,
        entry.digest,
        entry.size_bytes,
        annotations=manifest.annotations,
        artifact_type=artifact_type,
    )


def render_referrers(rows: Sequence[Descriptor]) -> bytes:
    """The image index of the rows."""
    manifests = [render_descriptor(row) for row in rows[:MAX_REFERRERS]]
    return orjson.dumps({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": manifests})


def parse_referrers(raw: bytes, artifact_type: str | None, *, where: str) -> list[Descriptor]:
    """The rows of an image index, those of one artifact type only where it is given.

    Rows with the type of an empty config stay, because some registries name it in place of the artifact type.
    Raises MalformedArtifactError.
    """
    rows = parse_object(raw, where=where, what="the list of referrers").get("manifests", [])
    if not isinstance(rows, list):
        raise MalformedArtifactError(where, "the list of referrers is no list")
    parsed = [parse_descriptor(row, where=where) for row in rows[:MAX_REFERRERS]]
    types = (artifact_type, EMPTY_CONFIG.media_type)
    return [row for row in parsed if artifact_type is None or row.artifact_type in types]


def list_referrers(repository: str, digest: str, artifact_type: str | None) -> Flow[list[Descriptor]]:
    """List the referrers of a digest; [] where the registry has none, or does not list them."""
    place = Reference(check_repository(repository), digest=digest)
    what = f"the referrers of {place}"
    paths = (
        f"/v2/{repository}/referrers/{digest}",
        f"/v2/{repository}/manifests/{referrers_tag(digest)}",
    )
    for path in paths:
        response = yield RegistryRequest(
            "GET", path, {"accept": INDEX_TYPE}, max_response_bytes=MAX_MANIFEST_BYTES, what=what
        )
        is_index = response.headers.get("content-type", "").startswith(INDEX_TYPE)
        if response.status == 200 and is_index:
            return parse_referrers(response.body, artifact_type, where=what)
        if response.status not in (200, 400, 404, 405):
            expect(response, 200)
    return []


def push_referrer(repository: str, package: Package, is_replaced: IsReplaced) -> Flow[None]:
    """Push an artifact by digest, so that it is listed as a referrer of its subject.

    Where the registry does not note subjects, the index under the tag of the subject gets a row, without the
    rows that ``is_replaced`` names. Two clients may write this index at once, so a lost row is written again.
    Raises RegistryRefusedError.
    """
    subject = subject_of(package.manifest)
    if subject is None:
        raise MalformedArtifactError(repository, "the artifact names no subject")
    for digest, content in package.blobs.items():
        yield from push_blob(repository, digest, content)
    place = Reference(check_repository(repository), digest=package.digest)
    media_type = package.manifest.media_type or MANIFEST_TYPE
    size_bytes = len(package.manifest_bytes)
    response = yield RegistryRequest(
        "PUT",
        f"/v2/{repository}/manifests/{package.digest}",
        {"content-type": media_type},
        package.manifest_bytes,
        what=str(place),
        always_repeatable=True,
    )
    if expect(response, 201).headers.get(SUBJECT) is not None:
        return
    row = describe_referrer(package.manifest, Descriptor(media_type, package.digest, size_bytes))
    path = f"/v2/{repository}/manifests/{referrers_tag(subject)}"
    for _ in range(INDEX_ATTEMPTS):
        rows = yield from _read_index(path)
        if any(held.digest == row.digest for held in rows):
            return
        kept = [held for held in rows if not is_replaced(held)]
        index = render_referrers([row, *kept])
        headers = {"content-type": INDEX_TYPE}
        expect((yield RegistryRequest("PUT", path, headers, index, what=str(place))), 201)
    raise RegistryRefusedError(response.registry, 409, f"the index of referrers of {subject} keeps changing")


def _read_index(path: str) -> Flow[list[Descriptor]]:
    """The rows of an index of referrers; [] where there is none, or it cannot be read."""
    response = yield RegistryRequest("GET", path, {"accept": INDEX_TYPE}, what="the index of referrers")
    if response.status == 404:
        return []
    try:
        return parse_referrers(expect(response, 200).body, None, where=path)
    except MalformedArtifactError:
        return []
