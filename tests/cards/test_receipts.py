"""Receipts are signed whole: what is parsed is what was signed, and nothing else is taken."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.cards.receipts import (
    MAX_RECEIPT_BYTES,
    Receipt,
    SignedReceipt,
    measure_quantiles,
    parse_receipt,
    sign_receipt,
)
from retinue.cards.signatures import CardSigner, SigningKey, TrustedKeys
from retinue.core.errors import MalformedArtifactError
from tests.strategies import json_values, words

KEY = SigningKey.create()
SIGNER = CardSigner(KEY)
KEYS = TrustedKeys({"berlin": KEY.public})
NOW = 1_800_000_000
RECEIPT = Receipt(
    "agents/plan",
    "sha256:" + "a" * 64,
    "plan-agent",
    KEY.kid,
    40,
    {"timeout": 2, "output_validation_error": 1},
    {"p50": 12, "p95": 80, "p99": 95},
    "passed",
    NOW - 86_400,
    NOW - 60,
    NOW,
)

counts = st.integers(min_value=0, max_value=10**6)


@st.composite
def receipts(draw: st.DrawFn) -> Receipt:
    failures = draw(st.dictionaries(words, counts, max_size=4))
    begins_at = draw(counts)
    return Receipt(
        draw(words),
        draw(words),
        draw(words),
        KEY.kid,
        sum(failures.values()) + draw(counts),
        failures,
        draw(st.dictionaries(words, counts, max_size=3)),
        draw(st.sampled_from(["passed", "failed", "not_examined"])),
        begins_at,
        begins_at + draw(counts),
        draw(counts),
    )


@given(receipts())
def test_a_signed_receipt_is_parsed_to_itself_and_its_signature_holds(receipt: Receipt) -> None:
    signed = sign_receipt(receipt, SIGNER)
    parsed = parse_receipt(signed.content, where="test")
    assert parsed == signed
    assert parsed.verify(KEYS, NOW).state == "valid"
    assert parsed.verify(KEYS, NOW).owner == "berlin"


@given(st.binary(max_size=200) | json_values.map(orjson.dumps))
def test_any_bytes_are_a_receipt_or_an_error_that_names_them(content: bytes) -> None:
    with pytest.raises(MalformedArtifactError, match="agents/plan@x"):
        parse_receipt(content, where="agents/plan@x")


@given(st.sampled_from(sorted(RECEIPT.to_json())), json_values)
def test_a_changed_field_is_refused_or_voids_the_signature(key: str, value: object) -> None:
    document = orjson.loads(sign_receipt(RECEIPT, SIGNER).content)
    is_same = document["receipt"][key] == value and type(document["receipt"][key]) is type(value)
    document["receipt"][key] = value
    try:
        parsed = parse_receipt(orjson.dumps(document), where="test")
    except MalformedArtifactError:
        return
    assert parsed.verify(KEYS, NOW).state == ("valid" if is_same else "invalid")


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("type", "application/json", "type"),
        ("calls", 2, "failures"),
        ("calls", 2**60, "calls"),
        ("calls", True, "calls"),
        ("failures", {"x": -1}, "failures"),
        ("failures", {str(number): 1 for number in range(33)}, "failures"),
        ("exam", "excellent", "exam"),
        ("begins_at", NOW, "begins_at"),
        ("issuer", "another-key", "issuer"),
        ("agent", "", "agent"),
    ],
)
def test_an_error_names_the_field(field: str, value: object, problem: str) -> None:
    document = orjson.loads(sign_receipt(RECEIPT, SIGNER).content)
    document["receipt"][field] = value
    with pytest.raises(MalformedArtifactError, match=problem):
        parse_receipt(orjson.dumps(document), where="test")


def test_fields_of_newer_releases_are_signed_and_their_loss_voids_the_signature() -> None:
    fields = {**RECEIPT.to_json(), "region": "eu"}
    payload = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
    content = orjson.dumps({"receipt": fields, "signature": SIGNER.sign(payload)})
    parsed = parse_receipt(content, where="test")
    assert parsed.verify(KEYS, NOW).state == "valid"
    without = orjson.dumps({"receipt": RECEIPT.to_json(), "signature": dict(parsed.signature)})
    assert parse_receipt(without, where="test").verify(KEYS, NOW).state == "invalid"


def test_a_receipt_is_limited_in_size() -> None:
    signed: SignedReceipt = sign_receipt(replace(RECEIPT, agent="plan"), SIGNER)
    with pytest.raises(MalformedArtifactError, match="at most"):
        parse_receipt(signed.content + b" " * MAX_RECEIPT_BYTES, where="test")


def test_quantiles_are_those_of_the_nearest_rank() -> None:
    assert measure_quantiles([]) == {}
    assert measure_quantiles([7.4]) == {"p50": 7, "p95": 7, "p99": 7}
    assert measure_quantiles(map(float, range(1, 101))) == {"p50": 50, "p95": 95, "p99": 99}
