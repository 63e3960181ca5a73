"""Manifests, indexes and artifacts: exact forms, tolerant reading."""

from __future__ import annotations

import base64
import hashlib
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import DigestMismatchError, MalformedArtifactError, RetinueError
from retinue.oci.codec.artifacts import (
    CARD_ARTIFACT_TYPE,
    MAX_CONTENT_BYTES,
    MAX_INLINE_BYTES,
    Artifact,
    NewArtifact,
    card_artifact,
    find_card_name,
    parse_envelope,
    render_artifact,
    workflow_artifact,
)
from retinue.oci.codec.layout_index import REVISIONS_KEPT, Index, parse_index, render_index
from retinue.oci.codec.manifest import (
    REF_NAME,
    Descriptor,
    Manifest,
    describe,
    parse_manifest,
    render_manifest,
)
from tests.requirements import requirement

CARD = b'{"name": "plan-agent", "url": "http://localhost:8001", "skills": []}'
NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)

texts = st.text(max_size=12)
facts = st.dictionaries(texts, texts, max_size=3)
digests = st.from_regex(r"sha256:[0-9a-f]{64}", fullmatch=True)
media_types = st.from_regex(r"[a-z]{1,8}/[a-z.+]{1,20}", fullmatch=True)
junk_json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            texts
            | st.sampled_from(
                ["config", "layers", "manifests", "digest", "size", "annotations", "data", "mediaType"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)
descriptors = st.builds(
    Descriptor,
    media_types,
    digests,
    st.integers(0, 2**40),
    annotations=facts,
    artifact_type=st.none() | media_types,
    data=st.none() | st.binary(max_size=20),
    extra=st.just({}) | st.just({"urls": ["http://h/"], "platform": {"os": "linux"}}),
)
manifests = st.builds(
    Manifest,
    descriptors,
    st.lists(descriptors, max_size=3).map(tuple),
    artifact_type=st.none() | media_types,
    annotations=facts,
    extra=st.just({}) | st.just({"subject": {"digest": "x"}}),
)


def _pulled(new: NewArtifact) -> Artifact:
    package = render_artifact(new)
    return parse_envelope(package.manifest_bytes, where="here").open(new.content)


@given(manifests)
def test_a_rendered_manifest_reads_back_as_itself(manifest: Manifest) -> None:
    assert parse_manifest(render_manifest(manifest), where="here") == manifest


@given(st.lists(descriptors, max_size=4))
def test_a_rendered_index_reads_back_as_itself(entries: list[Descriptor]) -> None:
    index = Index(tuple(entries), extra={"annotations": {"a": "b"}})
    assert parse_index(render_index(index), where="here") == index


@given(st.binary(max_size=60) | junk_json.map(lambda value: _dumps(value)))
def test_junk_is_read_or_refused_but_never_crashes(raw: bytes) -> None:
    for parse in (parse_manifest, parse_index, parse_envelope):
        with suppress(RetinueError):
            parse(raw, where="here")


@requirement("P-17")
def test_a_card_travels_in_exactly_the_form_that_oras_push_would_give_it() -> None:
    new = card_artifact("plan-agent", CARD, version="1.0.0", skills=["a", "b"], created=NOON)
    digest = "sha256:" + hashlib.sha256(CARD).hexdigest()
    assert orjson.loads(render_artifact(new).manifest_bytes) == {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "artifactType": "application/vnd.a2a.agent.card",
        "config": {
            "mediaType": "application/vnd.oci.empty.v1+json",
            "digest": "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
            "size": 2,
            "data": "e30=",
        },
        "layers": [
            {
                "mediaType": "application/json",
                "digest": digest,
                "size": len(CARD),
                "data": base64.b64encode(CARD).decode(),
                "annotations": {"org.opencontainers.image.title": "plan_agent_card.json"},
            }
        ],
        "annotations": {
            "version": "1.0.0",
            "skills": "a,b",
            "org.opencontainers.image.created": "2026-11-21T12:00:00Z",
        },
    }


@requirement("P-20")
def test_a_card_without_version_has_no_version_in_its_annotations() -> None:
    new = card_artifact("plan", CARD, version=None, skills=[], created=NOON)
    assert "version" not in new.annotations
    assert _pulled(new).form == "card"


@requirement("P-29")
def test_a_workflow_travels_as_yaml() -> None:
    new = workflow_artifact("plan-build-test", b"name: x\n", created=NOON)
    assert (new.media_type, new.title) == ("application/yaml", "plan-build-test.yaml")
    assert _pulled(new).form == "workflow"


@requirement("P-29")
def test_a_workflow_of_the_pallet_media_type_is_known_as_one() -> None:
    layer = describe(b"id: x\n", "application/vnd.pallet.workflow.v1+yaml", inline=True)
    raw = render_manifest(Manifest(describe(b"{}", "application/json"), (layer,)))
    assert parse_envelope(raw, where="here").open(b"id: x\n").form == "workflow"


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=-7))])
def test_the_time_of_publishing_is_kept_to_the_microsecond(zone: timezone) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=zone)
    artifact = _pulled(card_artifact("plan", CARD, version=None, skills=[], created=moment))
    assert artifact.published_at == moment


@pytest.mark.parametrize("created", ["", "yesterday", None])
def test_an_unreadable_time_is_no_time(created: str | None) -> None:
    annotations = {} if created is None else {"org.opencontainers.image.created": created}
    assert _pulled(NewArtifact(CARD, "application/json", "x", "t", annotations)).published_at is None


def test_a_time_without_zone_is_taken_as_utc() -> None:
    annotations = {"org.opencontainers.image.created": "2026-01-02T03:04:05"}
    found = _pulled(NewArtifact(CARD, "application/json", "x", "t", annotations)).published_at
    assert found == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@requirement("P-05")
def test_the_titled_card_is_found_among_several_layers() -> None:
    card = describe(CARD, "application/octet-stream", title="plan_agent_card.json")
    other = describe(b"x", "text/plain", title="README")
    raw = render_manifest(Manifest(describe(b"{}", "application/json"), (other, card)))
    assert parse_envelope(raw, where="here").layer == card


def test_a_manifest_of_several_unknown_layers_holds_nothing_for_us() -> None:
    layers = (describe(b"a", "text/plain"), describe(b"b", "text/plain"))
    raw = render_manifest(Manifest(describe(b"{}", "application/json"), layers))
    with pytest.raises(MalformedArtifactError, match="neither an agent card"):
        parse_envelope(raw, where="here")


def test_inline_content_that_is_not_the_layers_is_ignored() -> None:
    layer = describe(CARD, "application/json", title="plan_agent_card.json")
    forged = Descriptor(layer.media_type, layer.digest, layer.size_bytes, layer.annotations, data=b"{}")
    raw = render_manifest(Manifest(describe(b"{}", "application/json"), (forged,)))
    envelope = parse_envelope(raw, where="here")
    assert envelope.inline_content() is None
    with pytest.raises(DigestMismatchError):
        envelope.open(b"{}")


def test_a_manifest_that_is_not_the_asked_digest_is_refused() -> None:
    raw = render_artifact(card_artifact("p", CARD, version=None, skills=[], created=NOON)).manifest_bytes
    with pytest.raises(DigestMismatchError):
        parse_envelope(raw, where="here", wanted_digest="sha256:" + "0" * 64)


def test_large_content_is_not_inlined_and_too_large_content_is_refused() -> None:
    large = b" " * (MAX_INLINE_BYTES + 1)
    package = render_artifact(card_artifact("p", large, version=None, skills=[], created=NOON))
    assert package.manifest.layers[0].data is None
    assert package.blobs[package.manifest.layers[0].digest] == large
    with pytest.raises(MalformedArtifactError, match="exceed"):
        render_artifact(NewArtifact(b" " * (MAX_CONTENT_BYTES + 1), "a/b", "t", "t"))


@pytest.mark.parametrize(
    ("content", "name"),
    [(CARD, "plan-agent"), (b"not json", None), (b"[]", None), (b'{"name": 3}', None)],
)
def test_the_name_in_a_card_is_found_where_there_is_one(content: bytes, name: str | None) -> None:
    new = NewArtifact(content, "application/json", "x_agent_card.json", CARD_ARTIFACT_TYPE)
    assert find_card_name(_pulled(new)) == name


def test_a_workflow_has_no_card_name() -> None:
    assert find_card_name(_pulled(workflow_artifact("w", b'{"name": "x"}', created=NOON))) is None


def _entry(number: int) -> Descriptor:
    return Descriptor("application/json", f"sha256:{number:064x}", 1)


def test_a_tag_moves_and_its_former_manifest_stays_readable_by_digest() -> None:
    index = Index().with_tag("v1", _entry(1)).with_tag("v1", _entry(2))
    found = index.find("v1")
    assert found is not None
    assert found.digest == _entry(2).digest
    assert index.find(_entry(1).digest) == _entry(1)
    assert index.tags == ["v1"]


def test_old_revisions_are_dropped_in_the_end_but_never_a_tagged_one() -> None:
    index = Index().with_tag("stable", _entry(0))
    for number in range(1, 50):
        index = index.with_tag("v1", _entry(number))
    assert index.tags == ["stable", "v1"]
    assert len(index.entries) == 2 + REVISIONS_KEPT
    assert index.find(_entry(1).digest) is None
    assert index.find(_entry(48).digest) is not None


def test_deleting_a_tag_takes_its_manifest_unless_another_tag_has_it() -> None:
    index = Index().with_tag("v1", _entry(1)).with_tag("v2", _entry(1)).with_tag("v3", _entry(3))
    assert index.without("v1").find(_entry(1).digest) is not None
    assert index.without("v1").without("v2").find(_entry(1).digest) is None
    assert index.without(_entry(1).digest).tags == ["v3"]
    assert index.without("v9") == index


@given(st.lists(st.tuples(st.sampled_from(["v1", "v2"]), st.integers(0, 5)), max_size=30))
def test_an_index_always_gives_back_what_was_tagged_last(pushes: list[tuple[str, int]]) -> None:
    index, expected = Index(), dict[str, str]()
    for tag, number in pushes:
        index = index.with_tag(tag, _entry(number))
        expected[tag] = _entry(number).digest
    assert {tag: _digest(index, tag) for tag in index.tags} == expected
    tagged = [entry.annotations[REF_NAME] for entry in index.entries if REF_NAME in entry.annotations]
    assert sorted(tagged) == sorted(expected)


def _digest(index: Index, tag: str) -> str:
    found = index.find(tag)
    assert found is not None
    return found.digest


def _dumps(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer that orjson cannot write
        return repr(value).encode()
