"""The tokens of the registry: scopes and challenges as text, and what a sealed token is good for."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import NotAuthenticatedError
from retinue.oci.codec.auth import parse_challenges
from retinue.web.codec.registry_scope import is_within, parse_scopes, render_challenge, scope_of
from retinue.web.registry_tokens import LIFETIME_S, RegistryTokens, is_registry_token

KEY = b"0123456789abcdef" * 4
PLAN = "/v2/agents/plan/manifests/v1"


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def test_a_token_returns_the_credentials_and_scopes_until_it_has_expired() -> None:
    clock = Clock()
    tokens = RegistryTokens(KEY, clock=clock)
    text, made_at = tokens.issue(b"rtn_secret", {"repository:agents/plan": frozenset({"pull"})})
    assert is_registry_token(text.encode())
    assert "secret" not in text
    clock.now = made_at + LIFETIME_S - 1
    opened = tokens.open(text.encode())
    assert (opened.token, opened.scopes) == (b"rtn_secret", {"repository:agents/plan": frozenset({"pull"})})
    clock.now = made_at + LIFETIME_S
    with pytest.raises(NotAuthenticatedError, match="has expired"):
        tokens.open(text.encode())
    clock.now = made_at - 60  # the clock was set back
    with pytest.raises(NotAuthenticatedError, match="has expired"):
        tokens.open(text.encode())


def test_a_token_of_another_mesh_or_with_a_changed_letter_is_refused() -> None:
    text, _ = RegistryTokens(KEY).issue(b"x", {})
    changed = text[:-10] + ("A" if text[-10] != "A" else "B") + text[-9:]
    for tokens, sent in ((RegistryTokens(KEY[::-1]), text), (RegistryTokens(KEY), changed)):
        with pytest.raises(NotAuthenticatedError, match="not one of this registry"):
            tokens.open(sent.encode())


@pytest.mark.parametrize(
    "header",
    [b'{"alg":"dir","enc":{}}', b'["alg","enc"]', b'"alg enc"', b'{"alg":["dir"],"enc":"A256GCM"}', b"7"],
)
def test_a_token_with_another_header_is_refused(header: bytes) -> None:
    text, _ = RegistryTokens(KEY).issue(b"x", {})
    forged = base64.urlsafe_b64encode(header).rstrip(b"=").decode()
    with pytest.raises(NotAuthenticatedError, match="not one of this registry"):
        RegistryTokens(KEY).open(f"rtnr_{forged}.{text.partition('.')[2]}".encode())


@given(st.binary(max_size=80))
def test_no_text_breaks_the_reading_of_a_token(text: bytes) -> None:
    with pytest.raises(NotAuthenticatedError):
        RegistryTokens(KEY).open(b"rtnr_" + text)


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "/v2/", ""),
        ("GET", "/v2/_catalog", "registry:catalog:*"),
        ("POST", "/v2/_manifests", "registry:catalog:*"),
        ("GET", PLAN, "repository:agents/plan:pull"),
        ("HEAD", "/v2/a/b/c/blobs/sha256:1", "repository:a/b/c:pull"),
        ("POST", "/v2/agents/plan/blobs/uploads/", "repository:agents/plan:pull,push"),
        ("DELETE", PLAN, "repository:agents/plan:delete"),
    ],
)
def test_a_request_needs_the_scope_that_docker_registry_names(method: str, path: str, scope: str) -> None:
    assert scope_of(method, path) == scope
    assert is_within(method, path, parse_scopes([scope]))
    assert is_within(method, path, {}) == (scope == "")


def test_a_scope_is_good_for_its_repository_and_its_actions_only() -> None:
    pull = parse_scopes(["repository:agents/plan:pull registry:x"])
    assert is_within("GET", PLAN, pull)
    for method, path in (("PUT", PLAN), ("DELETE", PLAN), ("GET", "/v2/agents/p/tags/list")):
        assert not is_within(method, path, pull)
    assert not is_within("DELETE", PLAN, parse_scopes(["repository:agents/plan:pull,push"]))


def test_unreadable_scopes_and_too_many_are_left_out() -> None:
    assert parse_scopes(["", "x", "repository:a", "repository:a:PULL", f"repository:{'a' * 400}:pull"]) == {}
    assert len(parse_scopes([f"repository:a{number}:pull" for number in range(200)])) == 50
    assert parse_scopes(["repository:a:pull", "repository:a:push"]) == {"repository:a": {"pull", "push"}}


def test_a_challenge_is_one_field_that_begins_with_basic() -> None:
    """Clients in Go read the first challenge of a field; oras-py takes the last realm."""
    text = render_challenge("https://h.example/v2/token", "repository:a:pull,push", "invalid_token")
    basic, bearer = parse_challenges(text)
    assert (basic.scheme, basic.parameters) == ("basic", {"realm": "retinue"})
    assert (bearer.scheme, bearer.parameters) == (
        "bearer",
        {
            "realm": "https://h.example/v2/token",
            "service": "retinue",
            "scope": "repository:a:pull,push",
            "error": "invalid_token",
        },
    )


def test_the_realm_is_the_public_address_else_that_of_the_request() -> None:
    inside = "http://127.0.0.1:9000"
    for url, realm in ((None, inside), ("https://h.example/mesh/", "https://h.example/mesh")):
        challenge = RegistryTokens(KEY, url).challenge(inside, "GET", "/v2/")
        assert parse_challenges(challenge)[1].parameters == {
            "realm": f"{realm}/v2/token",
            "service": "retinue",
        }
