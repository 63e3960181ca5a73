"""Pure: ``POST /v2/_manifests``, many manifests in one request, as a hub gives them to whoever asks.

An extension beside the distribution spec: both bodies are ``{"manifests": {repository: …}}``, with a
digest where it is asked and the manifest as text where it is answered. ``null`` means "ask for this one
by itself"; what an answer leaves out was over its cap and is asked again. No repository can be called
``_manifests``, so a registry that does not know the path answers 404 or 405. A multipart answer was
rejected: manifests are JSON text, and one JSON document costs both ends the least.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import orjson

from retinue.core.errors import MalformedArtifactError, RegistryError, TooLargeError
from retinue.protocols.oci.artifacts import Artifact, parse_envelope
from retinue.protocols.oci.exchange import Flow, Request
from retinue.protocols.oci.manifest import parse_object
from retinue.protocols.oci.reference import Reference

BULK_PATH = "/v2/_manifests"
BULK_TYPE = "application/vnd.retinue.manifests.v1+json"

MAX_WANTED = 1000
"""Manifests that one request may ask for."""

MAX_WANTED_BYTES = 512 * 1024
"""Room for so many of the longest names, each with its digest."""

MAX_MANIFESTS_BYTES = 2 * 1024 * 1024
"""What the manifests of one answer come to at most; a larger one is asked for by itself."""

MAX_ANSWER_BYTES = 5 * 1024 * 1024
"""The same as JSON text, where quotes and backslashes take two bytes, with the longest names."""

Pulled = Mapping[str, Artifact | RegistryError | None]
"""What was answered by repository: an artifact, why it is none, or None to pull it by itself."""


def render_wanted(wanted: Mapping[str, str]) -> bytes:
    """The request for these digests by repository."""
    return orjson.dumps({"manifests": dict(wanted)})


def parse_wanted(body: bytes) -> dict[str, str]:
    """The digests by repository that a request asks for, in its order.

    Raises MalformedArtifactError, TooLargeError, InvalidReferenceError.
    """
    wanted = parse_object(body, where="the request", what="its body").get("manifests")
    if not isinstance(wanted, dict) or not all(isinstance(digest, str) for digest in wanted.values()):
        raise MalformedArtifactError("the request", "its manifests are no digests by repository")
    if len(wanted) > MAX_WANTED:
        raise TooLargeError("the request", MAX_WANTED, "manifests")
    for repository, digest in wanted.items():
        Reference(repository, digest=digest)  # which checks both
    return wanted


def render_manifests(found: Mapping[str, bytes | None]) -> bytes:
    """The answer that holds these manifests by repository; one that is no text is left to be pulled alone."""
    return orjson.dumps({"manifests": {name: _text_or_none(raw) for name, raw in found.items()}})


def parse_manifests(body: bytes, wanted: Collection[str]) -> dict[str, bytes | None]:
    """The manifests of the wanted repositories that an answer holds; none in one that cannot be read."""
    try:
        found = parse_object(body, where="the answer", what="it").get("manifests")
    except MalformedArtifactError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        name: raw.encode() if isinstance(raw, str) else None for name, raw in found.items() if name in wanted
    }


def pull_many(references: Iterable[Reference]) -> Flow[Pulled]:
    """Pull many artifacts by their digests, of each repository one, verified as ``flows.pull`` does it.

    Empty where the registry does not answer such a request. What it left out may be asked again.
    """
    wanted = {one.repository: one for one in references if one.digest is not None}
    digests = {name: one.digest or "" for name, one in wanted.items()}
    response = yield Request(
        "POST",
        BULK_PATH,
        {"accept": BULK_TYPE, "content-type": BULK_TYPE},
        render_wanted(digests),
        MAX_ANSWER_BYTES,
        f"{len(wanted)} manifests",
        always_repeatable=True,
    )
    # A registry that takes the path for something else may answer 200 as well.
    if response.status != 200 or not response.headers.get("content-type", "").startswith(BULK_TYPE):
        return {}
    return {name: _open(wanted[name], raw) for name, raw in parse_manifests(response.body, wanted).items()}


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
