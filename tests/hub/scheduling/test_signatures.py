"""The signatures of webhooks are those of Standard Webhooks."""

from __future__ import annotations

import base64

import pytest

from retinue.core.errors import InvalidParametersError, NotAuthenticatedError
from retinue.hub.scheduling.signatures import check_secret, new_secret, sign, verify

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
EVENT, SENT_AT, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
"""The example of the tests of the reference implementations."""


def headers(**changed: str) -> dict[str, str]:
    sent = {"webhook-id": EVENT, "webhook-timestamp": str(SENT_AT), "webhook-signature": SIGNATURE}
    return sent | {name.replace("_", "-"): value for name, value in changed.items()}


def test_the_example_of_the_reference_is_signed_and_verified_in_the_same_way() -> None:
    assert sign(SECRET, EVENT, SENT_AT, BODY) == SIGNATURE
    delivery = verify(SECRET, headers(), BODY, SENT_AT + 299.0)
    assert (delivery.event, delivery.sent_at) == (EVENT, SENT_AT)


def test_one_fitting_signature_of_several_is_enough() -> None:
    other = sign(new_secret(), EVENT, SENT_AT, BODY)
    both = f"v1a,abc {other} v1,%%% {SIGNATURE}"
    assert verify(SECRET, headers(webhook_signature=both), BODY, SENT_AT).event == EVENT


@pytest.mark.parametrize(
    ("changed", "body", "problem"),
    [
        ({"webhook_id": ""}, BODY, "webhook-id is missing"),
        ({"webhook_timestamp": ""}, BODY, "webhook-timestamp is missing"),
        ({"webhook_signature": ""}, BODY, "webhook-signature is missing"),
        ({"webhook_id": "a.b"}, BODY, "without a full stop"),
        ({"webhook_timestamp": "2026-12-01"}, BODY, "whole seconds since 1970"),
        ({"webhook_id": "msg_other"}, BODY, "does not fit"),
        ({"webhook_timestamp": str(SENT_AT + 1)}, BODY, "does not fit"),
        ({"webhook_signature": "v2" + SIGNATURE[2:]}, BODY, "does not fit"),
        ({"webhook_signature": "v1,ümläut"}, BODY, "does not fit"),
        ({"webhook_signature": sign(new_secret(), EVENT, SENT_AT, BODY)}, BODY, "does not fit"),
        ({}, b'{"test": 2432232315}', "does not fit"),
    ],
)
def test_a_changed_request_is_refused_with_what_is_wrong(
    changed: dict[str, str], body: bytes, problem: str
) -> None:
    with pytest.raises(NotAuthenticatedError, match=problem) as caught:
        verify(SECRET, headers(**changed), body, SENT_AT)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(("age_s", "side"), [(301, "301 s old"), (-301, "301 s ahead of this")])
def test_a_time_more_than_five_minutes_away_is_refused(age_s: int, side: str) -> None:
    with pytest.raises(NotAuthenticatedError, match=side):
        verify(SECRET, headers(), BODY, SENT_AT + age_s)


@pytest.mark.parametrize("size", [24, 64])
def test_a_secret_of_a_sender_is_taken(size: int) -> None:
    text = "whsec_" + base64.b64encode(bytes(size)).decode()
    assert check_secret(f"{text}\n") == text
    assert check_secret(new_secret()).startswith("whsec_")


@pytest.mark.parametrize(
    "text", ["", "hunter2", "whsec_", "whsec_%%%", "whsec_" + "A" * 28, "whpk_" + "A" * 44]
)
def test_other_secrets_are_refused_without_repeating_them(text: str) -> None:
    with pytest.raises(InvalidParametersError, match="24 to 64 bytes") as caught:
        check_secret(text)
    assert text in ("", "whsec_") or text not in str(caught.value)
