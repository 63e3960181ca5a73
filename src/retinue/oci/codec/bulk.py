"""``POST /v2/_manifests``: many manifests in one request, an extension of the hub's registry.

Both bodies are ``{"manifests": {repository: …}}``: the request has digests, the response manifests as text.
``null`` in a response means "request this one by itself"; manifests left out exceeded the size limit and are
requested again. ``_manifests`` is not a valid repository name, so other registries answer 404 or 405. A
multipart response was rejected, because manifests are JSON text and one JSON document is cheapest for both
sides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import orjson

from retinue.core.errors import MalformedArtifactError, RegistryError, TooLargeError
from retinue.oci.codec.artifacts import Artifact, parse_envelope
from retinue.oci.codec.exchange import Flow, RegistryRequest
from retinue.oci.codec.manifest import parse_object
from retinue.oci.codec.reference import Reference

BULK_PATH = "/v2/_manifests"
BULK_TYPE = "application/vnd.retinue.manifests.v1+json"

MAX_WANTED = 1000
"""Maximum number of manifests in one request."""

MAX_WANTED_BYTES = 512 * 1024
"""Fits `MAX_WANTED` of the longest names with their digests."""

MAX_MANIFESTS_BYTES = 2 * 1024 * 1024
"""Maximum total size of the manifests in one response; a larger one is requested by itself."""

MAX_RESPONSE_BYTES = 5 * 1024 * 1024
"""The same as JSON text, where quotes and backslashes take two bytes, plus the longest names."""

Pulled = Mapping[str, Artifact | RegistryError | None]
"""By repository: an artifact, the error that it has, or None to pull it by itself."""


def render_wanted(digests: Mapping[str, str]) -> bytes:
    """Render the request for digests by repository."""
    return orjson.dumps({"manifests": dict(digests)})


def parse_wanted(body: bytes) -> dict[str, str]:
    """Parse the digests by repository in a request, in its order.

    Raises MalformedArtifactError, TooLargeError, InvalidReferenceError.
    """
    wanted = parse_object(body, where="the request", what="its body").get("manifests")
    if not isinstance(wanted, dict) or not all(isinstance(digest, str) for digest in wanted.values()):
        raise MalformedArtifactError(
            "the request", "its member manifests must be an object of digests by repository"
        )
    if len(wanted) > MAX_WANTED:
        raise TooLargeError("the request", MAX_WANTED, "manifests")
    for repository, digest in wanted.items():
        Reference(repository, digest=digest)  # validates both
    return wanted


def render_manifests(manifests: Mapping[str, bytes | None]) -> bytes:
    """Render the response with manifests by repository; None for manifests that are not UTF-8."""
    return orjson.dumps({"manifests": {name: _text_or_none(raw) for name, raw in manifests.items()}})


def parse_manifests(body: bytes, names: Collection[str]) -> dict[str, bytes | None]:
    """Parse the manifests of the wanted repositories in a response; empty when it is invalid."""
    try:
        manifests = parse_object(body, where="the response", what="it").get("manifests")
    except MalformedArtifactError:
        return {}
    if not isinstance(manifests, dict):
        return {}
    return {
        name: raw.encode() if isinstance(raw, str) else None
        for name, raw in manifests.items()
        if name in names
    }


def pull_many(references: Iterable[Reference]) -> Flow[Pulled]:
    """Pull many artifacts by digest, one per repository, verified as by `flows.pull`.

    Empty when the registry does not support the request. Repositories left out may be requested again.
    """
    by_repository = {
        reference.repository: reference for reference in references if reference.digest is not None
    }
    digests = {name: reference.digest or "" for name, reference in by_repository.items()}
    response = yield RegistryRequest(
        "POST",
        BULK_PATH,
        {"accept": BULK_TYPE, "content-type": BULK_TYPE},
        render_wanted(digests),
        MAX_RESPONSE_BYTES,
        f"{len(by_repository)} manifests",
        always_repeatable=True,
    )
    # A registry that gives the path another meaning may answer 200 as well.
    if response.status != 200 or not response.headers.get("content-type", "").startswith(BULK_TYPE):
        return {}
    return {
        name: _open(by_repository[name], raw)
        for name, raw in parse_manifests(response.body, by_repository).items()
    }


def _open(reference: Reference, raw: bytes | None) -> Artifact | RegistryError | None:
    if raw is None:
        return None
    where = str(Reference(reference.repository, tag=reference.tag)) if reference.tag else str(reference)
    try:
        envelope = parse_envelope(raw, where=where, tag=reference.tag, wanted_digest=reference.digest)
        content = envelope.inline_content()
        return None if content is None else envelope.open(content)
    except RegistryError as error:
        return error


def _text_or_none(raw: bytes | None) -> str | None:
    try:
        return None if raw is None else raw.decode()
    except UnicodeDecodeError:
        return None
