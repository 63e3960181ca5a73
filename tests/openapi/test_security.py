"""Security schemes as environment variables, and credentials on requests."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.core.errors import InvalidSettingError, NotAuthenticatedError
from retinue.openapi.codec.security import (
    RequestCredentials,
    choose_credentials,
    list_variables,
    parse_alternatives,
    parse_schemes,
)

SCHEMES: dict[str, Any] = {
    "ApiKey": {"type": "apiKey", "name": "X-Key", "in": "header", "description": "A key."},
    "inQuery": {"type": "apiKey", "name": "key", "in": "query"},
    "session": {"type": "apiKey", "name": "sid", "in": "cookie"},
    "login": {"type": "http", "scheme": "Basic"},
    "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
    "OAuth2": {"type": "oauth2", "flows": {}},
    "oidc": {"type": "openIdConnect", "openIdConnectUrl": "https://example.com"},
}


def _choose(alternatives: list[dict[str, Any]], environment: dict[str, str]) -> RequestCredentials:
    schemes, notes = parse_schemes({"components": {"securitySchemes": SCHEMES}}, "my-api")
    assert not notes
    return choose_credentials("GET /a", parse_alternatives(alternatives), schemes, environment)


def test_each_scheme_names_its_variables() -> None:
    schemes, _ = parse_schemes({"components": {"securitySchemes": SCHEMES}}, "my-api")
    assert {name: scheme.variables for name, scheme in schemes.items()} == {
        "ApiKey": ("MY_API_API_KEY",),
        "inQuery": ("MY_API_IN_QUERY",),
        "session": ("MY_API_SESSION",),
        "login": ("MY_API_LOGIN_USERNAME", "MY_API_LOGIN_PASSWORD"),
        "token": ("MY_API_TOKEN",),
        "OAuth2": ("MY_API_OAUTH2",),
        "oidc": ("MY_API_OIDC",),
    }
    assert schemes["ApiKey"].description == "A key."


@pytest.mark.parametrize(
    ("scheme", "environment", "expected"),
    [
        ("ApiKey", {"MY_API_API_KEY": " k "}, RequestCredentials({"x-key": "k"}, {}, {})),
        ("inQuery", {"MY_API_IN_QUERY": "k"}, RequestCredentials({}, {"key": "k"}, {})),
        ("session", {"MY_API_SESSION": "k"}, RequestCredentials({}, {}, {"sid": "k"})),
        (
            "login",
            {"MY_API_LOGIN_USERNAME": "ä", "MY_API_LOGIN_PASSWORD": ""},
            RequestCredentials({"authorization": "Basic w6Q6"}, {}, {}),
        ),
        ("token", {"MY_API_TOKEN": "t"}, RequestCredentials({"authorization": "Bearer t"}, {}, {})),
        ("OAuth2", {"MY_API_OAUTH2": "t"}, RequestCredentials({"authorization": "Bearer t"}, {}, {})),
    ],
)
def test_credentials_are_placed_as_the_scheme_says(
    scheme: str, environment: dict[str, str], expected: RequestCredentials
) -> None:
    assert _choose([{scheme: []}], environment) == expected


def test_the_first_alternative_that_is_complete_is_used() -> None:
    alternatives: list[dict[str, Any]] = [{"ApiKey": [], "inQuery": []}, {"token": ["read"]}]
    assert _choose(alternatives, {"MY_API_API_KEY": "k", "MY_API_TOKEN": "t"}).headers == {
        "authorization": "Bearer t"
    }
    both = _choose(alternatives, {"MY_API_API_KEY": "k", "MY_API_IN_QUERY": "q", "MY_API_TOKEN": "t"})
    assert both == RequestCredentials({"x-key": "k"}, {"key": "q"}, {})


def test_nothing_is_needed_where_nothing_is_required_or_where_it_is_optional() -> None:
    assert _choose([], {"MY_API_TOKEN": "t"}) == RequestCredentials({}, {}, {})
    assert _choose([{"token": []}, {}], {}) == RequestCredentials({}, {}, {})
    assert _choose([{}, {"token": []}], {"MY_API_TOKEN": "t"}).headers == {"authorization": "Bearer t"}


def test_missing_credentials_are_told_by_the_names_of_their_variables() -> None:
    with pytest.raises(NotAuthenticatedError) as refused:
        _choose(
            [{"ApiKey": [], "inQuery": []}, {"token": []}], {"MY_API_API_KEY": "secret", "MY_API_TOKEN": ""}
        )
    assert refused.value.remedy == (
        "set the environment variable MY_API_API_KEY and MY_API_IN_QUERY or MY_API_TOKEN "
        "and start the hub again"
    )
    assert "secret" not in f"{refused.value}{refused.value.remedy}"


def test_a_value_that_would_break_the_header_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidSettingError, match="MY_API_TOKEN") as refused:
        _choose([{"token": []}], {"MY_API_TOKEN": "secret\r\nX: 1"})
    assert "secret" not in refused.value.message


def test_a_scheme_that_is_not_supported_is_noted_and_never_satisfied() -> None:
    named = {
        "tls": {"type": "mutualTLS"},
        "old": {"type": "http", "scheme": "digest"},
        "bad": {"type": "apiKey", "name": "a b", "in": "header"},
        "lost": {"$ref": "#/nowhere"},
        "none": 7,
    }
    schemes, notes = parse_schemes({"components": {"securitySchemes": named}}, "x")
    assert (schemes, len(notes)) == ({}, 5)
    with pytest.raises(NotAuthenticatedError) as refused:
        choose_credentials("GET /a", (("tls",),), schemes, {})
    assert "not supported" in refused.value.remedy
    assert list_variables((("tls",), ("old",)), schemes) == ()


def test_two_schemes_never_share_a_variable() -> None:
    named = {"my key": SCHEMES["ApiKey"], "my-key": SCHEMES["token"], "1st": SCHEMES["token"]}
    schemes, notes = parse_schemes({"components": {"securitySchemes": named}}, "")
    assert [scheme.variables for scheme in schemes.values()] == [("MY_KEY",), ("_1ST",)]
    assert len(notes) == 1
