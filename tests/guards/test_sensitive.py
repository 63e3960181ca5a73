"""Secrets and personal data are found by their forms and checksums, and look-alikes are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.guards.sensitive import KINDS, find_sensitive, is_card, is_iban


def read(text: str) -> list[tuple[str, str]]:
    return [(finding.kind, text[finding.start : finding.end]) for finding in find_sensitive(text)]


@pytest.mark.parametrize(
    ("kind", "text", "part"),
    [
        ("card", "pay with 4111 1111 1111 1111, please", "4111 1111 1111 1111"),
        ("card", "amex 3782 822463 10005", "3782 822463 10005"),
        ("card", "(5555-5555-5555-4444)", "5555-5555-5555-4444"),
        ("iban", "to DE89 3704 0044 0532 0130 00 BIC COBADEFF", "DE89 3704 0044 0532 0130 00"),
        ("iban", "GB29NWBK60161331926819.", "GB29NWBK60161331926819"),
        ("email", "write to <jane.doe+x@example.org>", "jane.doe+x@example.org"),
        ("phone", "call +49 30 1234567 now", "+49 30 1234567"),
        ("phone", "or (415) 555-2671", "(415) 555-2671"),
        ("key", "it is ghp_" + "a1B2" * 9, "ghp_" + "a1B2" * 9),
        ("key", "password: hunter2!x", "hunter2!x"),
        ("key", '"api_key": "9f8e7d6c5b4a39281"', "9f8e7d6c5b4a39281"),
        ("key", "postgres://app:s3cretpw@db/x", "s3cretpw"),
        ("key", "Authorization: Bearer abcdef1234567890xyz", "abcdef1234567890xyz"),
        (
            "key",
            "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
            "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
        ),
        ("key", "cut -----BEGIN PRIVATE KEY-----\nMIIEpAIBAAKCAQEA", None),
    ],
)
def test_each_kind_is_found_where_it_stands(kind: str, text: str, part: str | None) -> None:
    (finding,) = find_sensitive(text)
    assert finding.kind == kind
    assert part in (None, text[finding.start : finding.end])


@pytest.mark.parametrize(
    "text",
    [
        "order 4111111111111112",
        "trace 550e8400-e29b-41d4-a716-446655440000",
        "at 1732650000123 and 1700000000000000",
        "0.4111111111111111",
        "icon@2x.png and git@github.com:a/b.git",
        "npm install pkg@1.2.3",
        "password: string",
        "token: ${TOKEN}, secret = os.environ",
        "api_key: your-api-key-here",
        "@@ -12,3 +1200000,4 @@",
        "version 1.2.3+20240101123456",
        "2024-01-01 12:00:00 +0000",
        "ISBN 978-3-16-148410-0",
        "DE89 3704 0044 0532 0130 01",
        "redacted@example.invalid",
    ],
)
def test_what_only_looks_alike_is_left(text: str) -> None:
    assert read(text) == []


def test_of_two_kinds_at_one_place_the_earlier_kind_is_found() -> None:
    assert read("password=jane.d0e@example.org") == [("key", "jane.d0e@example.org")]
    assert [finding.kind for finding in find_sensitive("password=jane.d0e@example.org", ["email"])] == [
        "email"
    ]


@given(st.integers(10**14, 10**15 - 1))
def test_one_digit_that_is_wrong_makes_a_number_no_card(body: int) -> None:
    start = f"4{body}"[:15]
    right = [digit for digit in "0123456789" if is_card(start + digit)]
    assert len(right) == (1 if len(set(start)) > 1 else len(right))


def test_check_digits_of_an_account_count() -> None:
    assert is_iban("FR1420041010050500013M02606")
    assert not is_iban("FR1520041010050500013M02606")
    assert not is_iban("XX1420041010050500013M02606")


@given(st.text(max_size=300))
def test_findings_are_in_order_and_do_not_overlap(text: str) -> None:
    findings = find_sensitive(text, KINDS)
    places = [place for finding in findings for place in (finding.start, finding.end)]
    assert places == sorted(places)
    assert all(finding.start < finding.end <= len(text) for finding in findings)
