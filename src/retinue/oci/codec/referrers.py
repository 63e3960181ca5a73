"""Referrers: the artifacts of a repository that name a manifest as their subject (distribution spec 1.1).

A registry lists them at ``/v2/NAME/referrers/DIGEST`` as an image index. Without that endpoint, clients keep
the same index under the tag ``sha256-HEX``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from retinue.core.errors import MalformedArtifactError
from retinue.oci.codec.exchange import Flow, RegistryRequest, expect
from retinue.oci.codec.manifest import (
    INDEX_TYPE,
    MAX_MANIFEST_BYTES,
    Descriptor,
    Manifest,
    parse_descriptor,
    parse_object,
    render_descriptor,
)
from retinue.oci.codec.reference import Reference, check_repository, is_digest

FILTERED = "oci-filters-applied"
"""Header of a response that has only the rows of the requested type."""

SUBJECT = "oci-subject"
"""Header of the response to a pushed manifest whose subject the registry has noted."""

MAX_REFERRERS = 1_000


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

    Raises MalformedArtifactError.
    """
    rows = parse_object(raw, where=where, what="the list of referrers").get("manifests", [])
    if not isinstance(rows, list):
        raise MalformedArtifactError(where, "the list of referrers is no list")
    parsed = [parse_descriptor(row, where=where) for row in rows[:MAX_REFERRERS]]
    return [row for row in parsed if artifact_type is None or row.artifact_type == artifact_type]


def list_referrers(repository: str, digest: str, artifact_type: str | None) -> Flow[list[Descriptor]]:
    """List the referrers of a digest; [] where the registry has none, or does not list them."""
    place = Reference(check_repository(repository), digest=digest)
    what = f"the referrers of {place}"
    paths = (
        f"/v2/{repository}/referrers/{digest}",
        f"/v2/{repository}/manifests/{digest.replace(':', '-')}",
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
