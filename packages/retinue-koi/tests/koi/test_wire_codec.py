"""The codec of the KOI wire: RIDs, hashes, bundles, events, payloads and signed envelopes."""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from retinue.cards.personality_profile import MAX_RID_BYTES
from retinue_koi.codec import payloads as p
from retinue_koi.codec.bundles import (
    Bundle,
    Event,
    EventType,
    WireError,
    canonical_timestamp,
    encode_bundle,
    has_hash,
    hash_contents,
    in_dialect,
    parse_bundle,
    parse_event,
    render_event,
)
from retinue_koi.codec.envelopes import (
    NodeKey,
    SignedEnvelope,
    canonical_message,
    decode_json,
    encode_envelope,
    is_signed_by,
    parse_envelope,
)
from retinue_koi.codec.personality import AgentPersonality
from retinue_koi.codec.profiles import EdgeProfile, EdgeStatus, EdgeType, NodeProfile, NodeType
from retinue_koi.codec.rids import KoiNetEdge, OtherRid, check_rid, edge_rids, node_rid, parse_rid, type_of
from tests.requirements import requirement

RID = "orn:agent.personality:helpful-agent/1.0"
KEY = NodeKey.generate()
OTHER = NodeKey.generate()
SOURCE, TARGET = node_rid("a", KEY.public_key), node_rid("b", OTHER.public_key)

texts = st.text(max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
contents = st.dictionaries(texts, values, max_size=5)
plain_contents = st.dictionaries(st.text("abcZ_", max_size=8), st.booleans() | st.text("xyz"), max_size=5)
moments = st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
bundles = st.builds(lambda held, now: Bundle.generate(RID, held, now=now), contents, moments)
events = bundles.map(lambda bundle: Event.from_bundle(EventType.NEW, bundle)) | st.just(
    Event.from_rid(EventType.FORGET, RID)
)


@requirement("K-05")
@given(bundles)
def test_a_bundle_survives_its_cache_file(bundle: Bundle) -> None:
    assert parse_bundle(decode_json(encode_bundle(bundle))) == bundle
    assert has_hash(bundle.contents, bundle.manifest.sha256_hash)


@given(contents)
def test_both_hashes_of_contents_are_accepted(held: dict[str, Any]) -> None:
    for dialect in ("signed", "unsigned"):
        assert has_hash(held, hash_contents(held, dialect))
    assert not has_hash(held, "0" * 64)
    assert not has_hash({**held, "more": 1, "less": 2}, hash_contents(held, "signed"))


@given(plain_contents)
def test_the_hashes_agree_on_ascii_text(held: dict[str, Any]) -> None:
    assert hash_contents(held, "signed") == hash_contents(held, "unsigned")


def test_the_hashes_are_those_of_rid_lib_3_2_5_and_of_rfc_8785() -> None:
    assert hash_contents({"a": "é"}, "unsigned").startswith("57e512a1")
    assert hash_contents({"a": "é"}, "signed").startswith("b3a092a6")
    assert hash_contents({"x": 1.0}, "unsigned").startswith("bf32f562")
    assert hash_contents({"x": 1.0}, "signed").startswith("5041bf1f")
    assert hash_contents({"x": 1e-7}, "signed") == hashlib.sha256(rfc8785.dumps({"x": 1e-7})).hexdigest()
    bundle = Bundle.generate(RID, {"a": "é"})
    assert in_dialect(bundle, "signed").manifest.sha256_hash.startswith("b3a092a6")
    assert in_dialect(bundle, "unsigned") is bundle


def test_a_bundle_is_later_than_the_one_before_even_if_the_clock_went_back() -> None:
    first = Bundle.generate(RID, {}, now=datetime(2030, 1, 1, tzinfo=UTC))
    second = Bundle.generate(RID, {}, after_us=first.manifest.instant_us)
    assert second.manifest.timestamp == "2030-01-01T00:00:00.000001Z"


@pytest.mark.parametrize(
    ("received", "signed"),
    [
        ("2026-11-21T05:46:02.510Z", "2026-11-21T05:46:02.510000Z"),
        ("2026-11-21T05:46:02+00:00", "2026-11-21T05:46:02Z"),
        ("2026-11-21T05:46:02.000000Z", "2026-11-21T05:46:02Z"),
        ("2026-11-21T05:46:02.5+02:00", "2026-11-21T05:46:02.500000+02:00"),
    ],
)
def test_a_time_is_signed_in_the_form_of_pydantic(received: str, signed: str) -> None:
    assert canonical_timestamp(received) == signed


@given(st.lists(events, max_size=4))
def test_events_survive_both_dialects(listed: list[Event]) -> None:
    payload = p.EventsPayload(tuple(listed))
    for dialect in ("signed", "unsigned"):
        data = (
            decode_json(orjson.dumps(p.render(payload, dialect), option=orjson.OPT_PASSTHROUGH_SUBCLASS))
            if (_fits(listed))
            else json.loads(json.dumps(p.render(payload, dialect)))
        )
        read = p.parse_request(p.BROADCAST, data)
        assert isinstance(read, p.EventsPayload)
        assert not read.refused
        assert [(e.rid, e.event_type, e.contents) for e in read.events] == [
            (e.rid, e.event_type, e.contents) for e in listed
        ]


def _fits(listed: list[Event]) -> bool:
    try:
        orjson.dumps([event.contents for event in listed])
    except orjson.JSONEncodeError:
        return False
    return True


def test_an_unsigned_event_has_exactly_the_keys_of_the_seed() -> None:
    data = render_event(Event.from_bundle(EventType.NEW, Bundle.generate(RID, {})), "unsigned")
    assert list(data) == ["rid", "event_type", "manifest", "contents"]
    assert list(data["manifest"]) == ["rid", "timestamp", "sha256_hash"]
    assert render_event(Event.from_rid(EventType.FORGET, RID), "unsigned") == {
        "rid": RID,
        "event_type": "FORGET",
    }


@pytest.mark.parametrize(
    ("payload", "path", "keys"),
    [
        (p.EventsPayload(()), p.BROADCAST, ["events"]),
        (p.PollEvents(3, SOURCE), p.POLL, ["rid", "limit"]),
        (p.FetchRids(("orn:x",)), p.RIDS, ["rid_types"]),
        (p.FetchManifests(("orn:x",), (RID,)), p.MANIFESTS, ["rid_types", "rids"]),
        (p.FetchBundles((RID,)), p.BUNDLES, ["rids"]),
    ],
)
def test_requests_have_the_keys_of_their_dialect(payload: p.Request, path: str, keys: list[str]) -> None:
    assert list(p.render(payload, "unsigned")) == keys
    signed = ["type", *(key for key in keys if (path, key) != (p.POLL, "rid"))]
    assert list(p.render(payload, "signed")) == signed
    assert p.parse_request(path, p.render(payload, "unsigned")) == payload


@given(st.lists(events, min_size=1, max_size=3))
def test_a_signed_envelope_is_verified_over_its_bytes_and_over_its_canonical_form(
    listed: list[Event],
) -> None:
    body = encode_envelope(p.EventsPayload(tuple(listed)), SOURCE, TARGET, KEY)
    envelope = parse_envelope(decode_json(body), body)
    assert canonical_message(envelope, p.BROADCAST) == envelope.message
    assert is_signed_by(envelope, KEY.public_key, p.BROADCAST)
    assert not is_signed_by(envelope, OTHER.public_key, p.BROADCAST)
    reordered = json.dumps(dict(reversed(decode_json(body).items())), indent=1).encode()
    again = parse_envelope(decode_json(reordered), reordered)
    assert again.message is None
    assert is_signed_by(again, KEY.public_key, p.BROADCAST)


@pytest.mark.parametrize(
    "value", [None, 0.1, 1.0, 1e16, 1e-7, 5e-324, 10**20, "é", "\u2028", "😀", "\x1f\x7f"]
)
def test_values_that_signers_write_differently_are_written_as_pydantic_writes_them(value: Any) -> None:
    body = encode_envelope(
        p.EventsPayload((Event.from_bundle(EventType.NEW, Bundle.generate(RID, {"value": value})),)),
        SOURCE,
        TARGET,
        KEY,
    )
    envelope = parse_envelope(decode_json(body), body)
    assert envelope.message is not None
    assert canonical_message(envelope, p.BROADCAST) == envelope.message
    assert b'"value":null' in envelope.message or value is not None


def test_a_changed_byte_breaks_the_signature() -> None:
    body = encode_envelope(p.FetchRids(("orn:a",)), SOURCE, TARGET, KEY)
    changed = body.replace(b"orn:a", b"orn:b")
    assert not is_signed_by(parse_envelope(decode_json(changed), changed), KEY.public_key, p.RIDS)


def test_the_mirrored_form_of_a_signature_has_the_same_id() -> None:
    body = encode_envelope(p.FetchRids(), SOURCE, TARGET, KEY)
    envelope = parse_envelope(decode_json(body), body)
    raw = base64.b64decode(envelope.signature)
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    mirrored = raw[:32] + (order - int.from_bytes(raw[32:])).to_bytes(32)
    twin = SignedEnvelope(
        envelope.payload, SOURCE, TARGET, base64.b64encode(mirrored).decode(), envelope.message
    )
    assert is_signed_by(twin, KEY.public_key, p.RIDS)
    assert twin.signature_id == envelope.signature_id


@pytest.mark.parametrize("signature", ["", "AAAA", "é", "A" * 88, "=" * 88])
def test_what_is_no_signature_is_not_valid(signature: str) -> None:
    assert not is_signed_by(SignedEnvelope({}, SOURCE, TARGET, signature, b"{}"), KEY.public_key, p.RIDS)


def test_a_key_survives_its_file() -> None:
    assert NodeKey.from_pem(KEY.to_pem()).public_key == KEY.public_key
    with pytest.raises(WireError, match="no unencrypted private key"):
        NodeKey.from_pem(b"nonsense")


@given(st.text(max_size=40))
def test_any_text_is_a_rid_or_refused_with_a_reason(text: str) -> None:
    try:
        check_rid(text)
    except ValueError:
        return
    else:
        assert str(parse_rid(text)) == text


def test_rids_of_known_types_have_their_classes() -> None:
    assert parse_rid(RID) == AgentPersonality("helpful-agent", "1.0")
    assert isinstance(parse_rid(edge_rids(SOURCE, TARGET)[0]), KoiNetEdge)
    assert isinstance(parse_rid("orn:foo.bar:1:2"), OtherRid)
    assert parse_rid("orn:foo.bar:1:2").reference == "1:2"
    assert type_of("orn:foo.bar:1:2") == "orn:foo.bar"
    assert type_of("https://example.org") == "https"


def test_a_rid_that_no_cache_file_can_hold_is_refused() -> None:
    check_rid("orn:x:" + "a" * (MAX_RID_BYTES - 6))
    with pytest.raises(ValueError, match="more than"):
        check_rid("orn:x:" + "a" * 300)
    with pytest.raises(ValueError, match="more than"):
        check_rid("orn:x:" + "é" * 100)


def test_an_event_that_cannot_be_read_does_not_take_the_others_with_it() -> None:
    good = render_event(Event.from_rid(EventType.FORGET, RID), "unsigned")
    bad = {"rid": "orn:x:" + "a" * 300, "event_type": "NEW"}
    read = p.parse_request(p.BROADCAST, {"events": [bad, good, 7, {"rid": RID, "event_type": "GONE"}]})
    assert isinstance(read, p.EventsPayload)
    assert [event.rid for event in read.events] == [RID]
    assert [one.reason[:12] for one in read.refused] == ["rid: 'orn:x:", "event: it is", "event_type: "]


@pytest.mark.parametrize(
    ("path", "data", "field"),
    [
        (p.BROADCAST, {}, "events"),
        (p.BROADCAST, [], "payload"),
        (p.POLL, {"limit": -1}, "limit"),
        (p.POLL, {"limit": True}, "limit"),
        (p.RIDS, {"rid_types": "orn:x"}, "rid_types"),
        (p.MANIFESTS, {"rids": [1]}, "rids"),
        (p.BUNDLES, {}, "rids"),
    ],
)
def test_a_malformed_request_names_its_field(path: str, data: Any, field: str) -> None:
    with pytest.raises(WireError, match=field):
        p.parse_request(path, data)


def test_too_many_events_are_refused() -> None:
    with pytest.raises(p.TooManyError, match="more than 2000"):
        p.parse_request(p.BROADCAST, {"events": [{}] * 2001})


@given(values)
def test_no_value_raises_anything_but_a_wire_error(value: Any) -> None:
    for path in p.PATHS:
        for data in (
            value,
            {"events": [value], "rids": value, "limit": value, "rid": value, "rid_types": value},
        ):
            try:
                p.parse_request(path, data)
            except WireError:
                continue
    for field in ("manifest", "contents", "rid", "event_type"):
        try:
            event = parse_event({"rid": RID, "event_type": "NEW", field: value})
        except WireError:
            continue
        assert event.rid == RID


def test_profiles_of_nodes_and_edges_survive_the_wire() -> None:
    node = NodeProfile(NodeType.FULL, "http://127.0.0.1:9000/koi-net", ("orn:x",), ("orn:y",), KEY.public_key)
    assert NodeProfile.parse(node.render()) == node
    edge = EdgeProfile(SOURCE, TARGET, EdgeType.POLL, EdgeStatus.PROPOSED, ("orn:x",))
    assert EdgeProfile.parse(edge.render()) == edge
    assert edge.approved().status is EdgeStatus.APPROVED


@given(
    st.dictionaries(
        st.sampled_from(["node_type", "base_url", "provides", "source", "target", "rid_types"]), values
    )
)
def test_a_profile_of_another_form_is_refused(held: dict[str, Any]) -> None:
    for parse in (NodeProfile.parse, EdgeProfile.parse):
        try:
            parse(held)
        except WireError:
            continue
