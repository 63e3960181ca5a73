"""Referrers are pushed by digest, and indexed by tag where the registry notes no subject."""

from __future__ import annotations

import orjson
import pytest

from retinue.cards.receipts import RECEIPT_TYPE
from retinue.core.errors import RegistryRefusedError
from retinue.oci.codec.artifacts import Package
from retinue.oci.codec.exchange import RegistryRequest
from retinue.oci.codec.manifest import (
    EMPTY_CONFIG,
    INDEX_TYPE,
    MANIFEST_TYPE,
    Descriptor,
    Manifest,
    render_descriptor,
    render_manifest,
)
from retinue.oci.codec.reference import choose_tag, choose_version_tags, digest_of, referrers_tag
from retinue.oci.codec.referrers import INDEX_ATTEMPTS, SUBJECT, push_referrer, render_referrers
from tests.oci.codec.replies import Reply, feed

CARD = Descriptor(MANIFEST_TYPE, "sha256:" + "a" * 64, 100)
TAG = "sha256-" + "a" * 64
CREATED: Reply = (201, {}, b"")


def pack(issuer: str) -> Package:
    subject = {"subject": render_descriptor(CARD)}
    manifest = Manifest(EMPTY_CONFIG, (), RECEIPT_TYPE, {"issuer": issuer}, MANIFEST_TYPE, subject)
    raw = render_manifest(manifest)
    return Package(manifest, raw, digest_of(raw), {})


def row_of(package: Package) -> Descriptor:
    facts = package.manifest.annotations
    size_bytes = len(package.manifest_bytes)
    return Descriptor(MANIFEST_TYPE, package.digest, size_bytes, facts, artifact_type=RECEIPT_TYPE)


def index(*packages: Package) -> Reply:
    return 200, {"content-type": INDEX_TYPE}, render_referrers([row_of(package) for package in packages])


def is_ours(row: Descriptor) -> bool:
    return row.annotations.get("issuer") == "berlin"


def rows_in(request: RegistryRequest) -> list[str]:
    assert (request.method, request.url) == ("PUT", f"/v2/agents/plan/manifests/{TAG}")
    return [row["digest"] for row in orjson.loads(request.body or b"")["manifests"]]


def test_a_registry_that_notes_the_subject_is_asked_once() -> None:
    noted: Reply = (201, {SUBJECT: CARD.digest}, b"")
    _, asked = feed(push_referrer("agents/plan", pack("berlin"), is_ours), noted)
    assert asked[0].url.endswith(pack("berlin").digest)


def test_elsewhere_the_index_gets_a_row_in_place_of_the_former_one_and_keeps_the_others() -> None:
    new, old, foreign = pack("berlin"), pack("berlin-old"), pack("paris")
    old_row = Descriptor(MANIFEST_TYPE, old.digest, 9, {"issuer": "berlin"}, artifact_type=RECEIPT_TYPE)
    held: Reply = (200, {"content-type": INDEX_TYPE}, render_referrers([old_row, row_of(foreign)]))
    _, asked = feed(push_referrer("agents/plan", new, is_ours), CREATED, held, CREATED, index(new, foreign))
    assert rows_in(asked[2]) == [new.digest, foreign.digest]


def test_a_row_that_another_client_overwrote_is_written_again_and_not_for_ever() -> None:
    new, foreign = pack("berlin"), pack("paris")
    none: Reply = (404, {}, b"")
    _, asked = feed(
        push_referrer("agents/plan", new, is_ours),
        CREATED,
        none,
        CREATED,
        index(foreign),
        CREATED,
        index(new),
    )
    assert rows_in(asked[4]) == [new.digest, foreign.digest]
    replies = [reply for _ in range(INDEX_ATTEMPTS) for reply in (index(foreign), CREATED)]
    with pytest.raises(RegistryRefusedError, match="keeps changing"):
        feed(push_referrer("agents/plan", new, is_ours), CREATED, *replies)


def test_a_tag_of_referrers_is_no_card() -> None:
    assert referrers_tag(CARD.digest) == TAG
    assert choose_tag([TAG]) is None
    assert choose_tag([TAG, f"{TAG}.sig", "stable"]) == "stable"
    assert choose_tag([TAG], TAG) == TAG
    assert choose_version_tags([TAG, "v1", "v2"]) == ("v2", "v1")
    assert choose_version_tags([TAG]) == ()
