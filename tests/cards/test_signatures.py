"""Signatures of cards: made and checked by us and by the SDK of A2A, and what a forged one meets."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import orjson
import pytest
from a2a.client.card_resolver import parse_agent_card as read_with_sdk
from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.utils.signing import (
    InvalidSignaturesError,
    create_agent_card_signer,
    create_signature_verifier,
)
from hypothesis import given
from hypothesis import strategies as st
from jwt.api_jwk import PyJWK

from retinue.cards.a2a_card import CardOptions, render_agent_card
from retinue.cards.signatures import (
    CardSigner,
    CardVerifier,
    Policy,
    SigningKey,
    TrustedKeys,
    canonical_forms,
    read_keys,
)
from retinue.core.errors import CardSignatureError, InvalidSettingError
from retinue.core.record import AgentRecord
from tests.cards.test_a2a_card import AGENT, MESH, URL
from tests.strategies import json_values, records

KEY = SigningKey.create()
OTHER = SigningKey.create()
TRUSTED = TrustedKeys({"ops": KEY.public})
SIGNER = CardSigner(KEY)


def signed(
    record: AgentRecord = AGENT, signer: CardSigner = SIGNER, *, legacy: bool = True
) -> dict[str, Any]:
    card = render_agent_card(record, URL, scopes=MESH, options=CardOptions(legacy=legacy))
    sent: dict[str, Any] = orjson.loads(orjson.dumps(signer.sign_agent_card(card)))
    return sent


def state_of(card: dict[str, Any], trusted: TrustedKeys = TRUSTED, **when: float) -> str:
    return trusted.verify(card.get("signatures"), canonical_forms(card), **when).state


def sdk_key(kid: str | None, jku: str | None) -> PyJWK:
    assert kid == KEY.kid
    return PyJWK.from_dict(dict(KEY.public))


verify_with_sdk = create_signature_verifier(sdk_key, ["ES256"])


def test_the_sdk_verifies_the_signature_of_our_card() -> None:
    verify_with_sdk(read_with_sdk(signed()))


def test_the_sdk_refuses_our_card_after_a_change() -> None:
    card = read_with_sdk({**signed(), "description": "Plans other work"})
    with pytest.raises(InvalidSignaturesError):
        verify_with_sdk(card)


def test_a_card_that_the_sdk_has_signed_and_served_is_valid_here() -> None:
    header: Any = {"kid": KEY.kid, "alg": "ES256", "typ": "JOSE", "jku": None}
    sign = create_agent_card_signer(PyJWK.from_dict(dict(KEY.jwk)), header)
    card = sign(read_with_sdk(render_agent_card(AGENT, URL, scopes=MESH)))
    # served with the keys of 0.3, which its signature does not cover
    served = orjson.loads(orjson.dumps(agent_card_to_dict(card)))
    assert state_of(served) == "valid"
    served["skills"][0]["description"] += "!"
    assert state_of(served) == "invalid"


@given(records)
def test_a_signed_card_stays_valid_on_its_way(record: AgentRecord) -> None:
    assert state_of(signed(record)) == "valid"


def test_a_card_of_0_3_signed_as_its_whole_document_is_valid() -> None:
    card = {"name": "old", "url": URL, "protocolVersion": "0.3.0", "skills": [], "supportsX": False}
    card["signatures"] = [SIGNER.sign(canonical_forms(card)[1])]
    assert state_of(card) == "valid"
    assert state_of({**card, "url": "http://evil.example/"}) == "invalid"


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"version": "9"},
        {"supportedInterfaces": [{"url": "http://evil.example/", "protocolBinding": "JSONRPC"}]},
        {"skills": []},
        {"capabilities": {}},
        {"iconUrl": "http://x/i.png"},
    ],
)
def test_a_tampered_card_is_invalid(change: dict[str, Any]) -> None:
    assert state_of({**signed(), **change}) == "invalid"


def test_an_unsigned_card_has_no_signature() -> None:
    card = signed()
    del card["signatures"]
    assert state_of(card) == "none"


def test_a_signature_of_an_unknown_key_says_which() -> None:
    card = signed(signer=CardSigner(OTHER))
    verdict = TRUSTED.verify(card["signatures"], canonical_forms(card))
    assert verdict.state == "unknown_key"
    assert OTHER.kid in verdict.reason


def test_a_stranger_who_claims_the_id_of_a_trusted_key_is_invalid() -> None:
    forged = SigningKey({**OTHER.jwk, "kid": KEY.kid})
    assert state_of(signed(signer=CardSigner(forged))) == "invalid"


def test_a_signature_ends_with_its_time() -> None:
    card = signed(signer=CardSigner(KEY, valid_days=1, clock=lambda: 1_000_000))
    assert state_of(card, now=1_000_000 + 86_000) == "valid"
    assert state_of(card, now=1_000_000 + 87_000) == "invalid"
    reason = TRUSTED.verify(card["signatures"], canonical_forms(card), now=2_000_000).reason
    assert reason == "its signature has expired at 1970-01-13T13:46:40+00:00"


def test_the_end_cannot_be_moved() -> None:
    card = signed(signer=CardSigner(KEY, valid_days=1, clock=lambda: 1_000_000))
    header = orjson.loads(urlsafe_b64decode(card["signatures"][0]["protected"] + "=="))
    moved = urlsafe_b64encode(orjson.dumps({**header, "exp": 10**12})).decode().rstrip("=")
    card["signatures"][0]["protected"] = moved
    assert state_of(card, now=1_000_000) == "invalid"


def test_a_signature_with_a_shared_secret_or_without_an_algorithm_is_never_valid() -> None:
    for algorithm in ("none", "HS256"):
        protected = urlsafe_b64encode(orjson.dumps({"alg": algorithm, "kid": KEY.kid})).decode().rstrip("=")
        card = {**signed(), "signatures": [{"protected": protected, "signature": ""}]}
        assert state_of(card) == "invalid"


def test_one_valid_signature_among_others_suffices() -> None:
    card = signed()
    card["signatures"] = [*signed(signer=CardSigner(OTHER))["signatures"], *card["signatures"]]
    assert state_of(card) == "valid"


def test_policy_warn_takes_a_malformed_signature_but_none_that_names_a_trusted_key() -> None:
    verifier = CardVerifier("warn", lambda: TRUSTED, lambda: 0)
    malformed = {"protected": "!", "signature": ""}
    assert verifier.check([malformed], [b"{}"], reference="agents/x:v1").state == "invalid"
    for signatures in ([SIGNER.sign(b"other")], [malformed, SIGNER.sign(b"other")]):
        with pytest.raises(CardSignatureError, match="its content is not what"):
            verifier.check(signatures, [b"{}"], reference="agents/x:v1")


@given(json_values | st.lists(st.fixed_dictionaries({"protected": json_values, "signature": json_values})))
def test_any_signatures_get_a_verdict(signatures: Any) -> None:
    assert TRUSTED.verify(signatures, [b"{}"]).state != "valid"


@pytest.mark.parametrize(
    ("policy", "signer", "refused"),
    [
        ("require", SIGNER, None),
        ("require", CardSigner(OTHER), "unknown_key"),
        ("require", None, "none"),
        ("warn", CardSigner(OTHER), None),
        ("off", None, None),
    ],
)
def test_the_policy_decides(policy: Policy, signer: CardSigner | None, refused: str | None) -> None:
    verifier = CardVerifier(policy, lambda: TRUSTED, lambda: 0)
    signatures = () if signer is None else [signer.sign(b"{}")]
    if refused is None:
        verifier.check(signatures, [b"{}"], reference="agents/x:v1")
        return
    with pytest.raises(CardSignatureError) as caught:
        verifier.check(signatures, [b"{}"], reference="agents/x:v1")
    assert caught.value.data == {"signature": refused}
    assert caught.value.message.startswith("agents/x:v1: it is ")


@pytest.mark.parametrize("document", [None, [], {}, {"keys": []}, {"keys": [3]}, {"kty": "oct", "k": "AAAA"}])
def test_what_is_no_set_of_public_keys_is_refused(document: Any) -> None:
    with pytest.raises(InvalidSettingError):
        read_keys(document, "x")


def test_a_private_key_that_is_trusted_by_mistake_is_kept_as_its_public_half() -> None:
    assert all("d" not in row for row in read_keys({"keys": [dict(KEY.jwk)]}, "x"))
