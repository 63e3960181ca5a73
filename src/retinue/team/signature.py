"""Signatures of teams: artifacts beside a team that name its digest as their subject.

A signature is that of a card (JWS with ES256 and a detached payload). Its payload is canonical JSON with the
digest, the name and the version, so that it proves nothing about another digest or team.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import rfc8785

from retinue.cards.signatures import MAX_SIGNATURES, CardSigner, TrustedKeys, Verdict
from retinue.core.errors import TeamRefusedError
from retinue.oci.codec.artifacts import Package
from retinue.oci.codec.manifest import (
    EMPTY_CONFIG,
    EMPTY_JSON,
    MANIFEST_TYPE,
    Descriptor,
    Manifest,
    describe,
    render_descriptor,
    render_manifest,
)
from retinue.oci.codec.reference import digest_of
from retinue.team.package import Team

SIGNATURE_TYPE = "application/vnd.retinue.signature.v1+json"
"""Artifact type and media type of signatures."""

MAX_SIGNATURE_BYTES = 256 * 1024


def signature_tag(digest: str) -> str:
    """The tag under which the signatures of a digest are, for registries without the referrers API."""
    return f"{digest.replace(':', '-')}.sig"


def payload_of(team: Team) -> bytes:
    """The bytes that are signed."""
    return rfc8785.dumps(
        {"type": SIGNATURE_TYPE, "digest": team.digest, "name": team.name, "version": team.version}
    )


def sign_team(team: Team, signer: CardSigner) -> dict[str, str]:
    """A signature of the team."""
    return signer.sign(payload_of(team))


def pack_signatures(signatures: Sequence[Mapping[str, str]], subject: Descriptor) -> Package:
    """The artifact of signatures over the manifest that ``subject`` describes."""
    content = orjson.dumps({"signatures": list(signatures)})
    layer = describe(content, SIGNATURE_TYPE, title="signatures.json")
    manifest = Manifest(
        EMPTY_CONFIG,
        (layer,),
        SIGNATURE_TYPE,
        {},
        MANIFEST_TYPE,
        {"subject": render_descriptor(subject)},
    )
    raw = render_manifest(manifest)
    return Package(manifest, raw, digest_of(raw), {layer.digest: content, EMPTY_CONFIG.digest: EMPTY_JSON})


def read_signatures(content: bytes) -> list[dict[str, str]]:
    """The signatures in the layer of such an artifact; [] for one that cannot be read."""
    try:
        document: Any = orjson.loads(content) if len(content) <= MAX_SIGNATURE_BYTES else {}
    except ValueError:
        return []
    rows = document.get("signatures") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        return []
    return [row for row in rows[:MAX_SIGNATURES] if isinstance(row, dict)]


def merge_signatures(
    signatures: Sequence[Mapping[str, str]], others: Sequence[Mapping[str, str]]
) -> list[dict[str, str]]:
    """Both lists as one, each signature once, at most as many as a reader looks at."""
    merged = {
        orjson.dumps(dict(row), option=orjson.OPT_SORT_KEYS): dict(row) for row in (*signatures, *others)
    }
    return list(merged.values())[:MAX_SIGNATURES]


def verify_team(
    team: Team, signatures: Sequence[Mapping[str, str]], keys: TrustedKeys, *, where: str
) -> Verdict:
    """The verdict of a signature by a trusted key over exactly this digest.

    Raises TeamRefusedError with the reason ``unsigned``, ``key_unknown`` or ``changed`` where there is none.
    """
    verdict = keys.verify([dict(row) for row in signatures], (payload_of(team),))
    if verdict.state == "valid":
        return verdict
    reasons = {"none": "unsigned", "unknown_key": "key_unknown"}
    raise TeamRefusedError(reasons.get(verdict.state, "changed"), where, verdict.reason)
