"""The way into a registry, fed by hand: challenges, Basic, tokens; and the Docker configuration."""

from __future__ import annotations

import base64
from collections.abc import Generator
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import InvalidSettingError, RegistryLoginError
from retinue.oci.codec import flows
from retinue.oci.codec.auth import (
    Challenge,
    RegistryCredentials,
    RegistryLogin,
    authorized,
    parse_challenges,
    scope_of,
)
from retinue.oci.codec.docker_config import parse_docker_config, parse_helper_answer, render_helper_request
from retinue.oci.codec.exchange import RegistryRequest, Response, origin_of
from tests.oci.codec.replies import BASE, Reply, feed
from tests.requirements import requirement

WHO = RegistryCredentials("hub", "s3cret")
BASIC = "Basic " + base64.b64encode(b"hub:s3cret").decode()
BEARER = 'Bearer realm="http://tokens/t",service="r:5000",scope="repository:a/b:pull,push"'
TAGS: Reply = (200, {}, b'{"tags": ["v1"]}')


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def wants(challenge: str) -> Reply:
    return 401, {"www-authenticate": challenge}, b""


def token(value: str = "t1", **more: Any) -> Reply:
    return 200, {}, orjson.dumps({"token": value, **more})


def signatures(asked: list[RegistryRequest]) -> list[str | None]:
    return [request.headers.get("authorization") for request in asked]


def tags(login: RegistryLogin) -> Generator[RegistryRequest, Response, list[str]]:
    return authorized(flows.list_tags("a/b"), login)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ('Basic realm="hub"', [("basic", {"realm": "hub"})]),
        ("Basic", [("basic", {})]),
        (BEARER, [("bearer", {"realm": "http://tokens/t", "service": "r:5000",
                              "scope": "repository:a/b:pull,push"})]),
        ('Negotiate, Bearer realm="x" , service=y, Basic realm="a \\"b\\""',
         [("negotiate", {}), ("bearer", {"realm": "x", "service": "y"}), ("basic", {"realm": 'a "b"'})]),
        ("Negotiate YWJj==, Basic realm=x", [("negotiate", {}), ("basic", {"realm": "x"})]),
        ("", []),
        ("=,;", []),
    ],
)  # fmt: skip
def test_challenges_are_read_in_every_form(header: str, expected: list[tuple[str, dict[str, str]]]) -> None:
    assert parse_challenges(header) == [Challenge(scheme, parameters) for scheme, parameters in expected]


@given(st.text(max_size=60) | st.text('Basicerl="\\, :/', max_size=60))
def test_no_challenge_breaks_the_reading(header: str) -> None:
    for challenge in parse_challenges(header):
        assert challenge.scheme == challenge.scheme.lower()


def test_a_registry_that_asks_nobody_is_told_nothing() -> None:
    _, asked = feed(tags(RegistryLogin(BASE, credentials=WHO)), TAGS)
    assert signatures(asked) == [None]


@requirement("P-30")
def test_basic_is_answered_once_and_remembered() -> None:
    login = RegistryLogin(BASE, credentials=WHO)
    found, asked = feed(tags(login), wants('Basic realm="hub"'), TAGS)
    assert (found, signatures(asked)) == (["v1"], [None, BASIC])
    _, asked = feed(tags(login), TAGS)
    assert signatures(asked) == [BASIC]
    with pytest.raises(RegistryLoginError):
        feed(tags(login), wants('Basic realm="hub"'))


def test_of_two_challenges_the_first_usable_one_is_answered() -> None:
    both = f'Basic realm="hub", {BEARER}'
    _, asked = feed(tags(RegistryLogin(BASE, credentials=WHO)), wants(both), TAGS)
    assert signatures(asked) == [None, BASIC]
    for who in (None, RegistryCredentials(identity_token="i")):
        _, asked = feed(tags(RegistryLogin(BASE, credentials=who)), wants(both), token(), TAGS)
        assert signatures(asked) == [None, None, "Bearer t1"]
    _, asked = feed(
        tags(RegistryLogin(BASE, credentials=WHO)), wants(f'{BEARER}, Basic realm="hub"'), token(), TAGS
    )
    assert signatures(asked) == [None, BASIC, "Bearer t1"]


def test_several_requests_that_are_refused_at_once_are_all_answered() -> None:
    login = RegistryLogin(BASE, credentials=WHO)
    running = [tags(login), tags(login)]
    for flow in running:
        assert next(flow).headers == {}
    refusal = Response(*wants('Basic realm="hub"'), BASE)
    assert [flow.send(refusal).headers["authorization"] for flow in running] == [BASIC, BASIC]


@pytest.mark.parametrize("who", [None, RegistryCredentials("", ""), RegistryCredentials(identity_token="i")])
def test_without_a_password_basic_cannot_be_answered(who: RegistryCredentials | None) -> None:
    with pytest.raises(RegistryLoginError) as caught:
        feed(tags(RegistryLogin(BASE, credentials=who)), wants('Basic realm="hub"'))
    assert caught.value.status == 401
    assert "docker login" in caught.value.remedy


@requirement("P-30")
def test_a_token_is_fetched_for_the_scope_that_was_asked_and_kept_until_it_is_old() -> None:
    clock = Clock()
    login = RegistryLogin(BASE, credentials=WHO, clock=clock)
    found, asked = feed(tags(login), wants(BEARER), token(expires_in=100), TAGS)
    assert found == ["v1"]
    assert signatures(asked) == [None, BASIC, "Bearer t1"]
    query = parse_qs(urlsplit(asked[1].url).query)
    assert asked[1].url.startswith("http://tokens/t?")
    assert query == {"service": ["r:5000"], "scope": ["repository:a/b:pull,push"], "client_id": ["retinue"]}
    clock.now = 89
    _, asked = feed(tags(login), TAGS)
    assert signatures(asked) == ["Bearer t1"]
    # Old before its end: the next one is fetched beforehand, and so is that of another repository.
    clock.now = 91
    _, asked = feed(tags(login), token("t2"), TAGS)
    assert signatures(asked) == [BASIC, "Bearer t2"]
    _, asked = feed(authorized(flows.list_tags("c"), login), token("t3"), TAGS)
    assert parse_qs(urlsplit(asked[0].url).query)["scope"] == ["repository:c:pull"]
    assert signatures(asked) == [BASIC, "Bearer t3"]


def test_a_token_that_is_refused_is_fetched_anew_once() -> None:
    login = RegistryLogin(BASE, credentials=WHO)
    feed(tags(login), wants(BEARER), token(), TAGS)
    _, asked = feed(tags(login), wants(BEARER), token("t2"), TAGS)
    assert signatures(asked) == ["Bearer t1", BASIC, "Bearer t2"]
    with pytest.raises(RegistryLoginError):
        feed(tags(login), wants(BEARER), token("t3"), wants(BEARER))


def test_anybody_may_have_a_token_without_a_password() -> None:
    _, asked = feed(tags(RegistryLogin(BASE)), wants(BEARER), token(), TAGS)
    assert signatures(asked) == [None, None, "Bearer t1"]


@requirement("P-30")
def test_an_identity_token_is_sent_as_a_form() -> None:
    login = RegistryLogin(BASE, credentials=RegistryCredentials(identity_token="i d"))
    answer: Reply = (200, {}, orjson.dumps({"access_token": "t", "expires_in": 60}))
    _, asked = feed(tags(login), wants(BEARER), answer, TAGS)
    assert (asked[1].method, asked[1].url) == ("POST", "http://tokens/t")
    assert asked[1].headers == {"content-type": "application/x-www-form-urlencoded"}
    assert parse_qs((asked[1].body or b"").decode()) == {
        "grant_type": ["refresh_token"],
        "service": ["r:5000"],
        "client_id": ["retinue"],
        "scope": ["repository:a/b:pull,push"],
        "refresh_token": ["i d"],
    }
    assert "i d" not in repr(asked)


@pytest.mark.parametrize(
    ("base", "realm", "answer", "message"),
    [
        (BASE, "http://tokens", (401, {}, b'{"details": "no"}'), "answered 401"),
        (BASE, "http://tokens", (200, {}, b"<html>"), "contains no token"),
        (BASE, "http://tokens", (200, {}, b"[]"), "contains no token"),
        (BASE, "http://tokens", token("a b\r\nX: 1"), "contains no token"),
        (BASE, "file:///etc/passwd", None, "is not a url"),
        (BASE, "tokens", None, "is not a url"),
        ("https://registry", "http://tokens", None, "unencrypted"),
    ],
)
def test_a_token_server_that_gives_nothing_is_named(
    base: str, realm: str, answer: Reply | None, message: str
) -> None:
    replies = [wants(f'Bearer realm="{realm}"'), *([answer] if answer is not None else [])]
    with pytest.raises(RegistryLoginError, match=message):
        feed(tags(RegistryLogin(base, credentials=WHO)), *replies)


def test_whoever_else_we_are_sent_to_gets_no_password() -> None:
    def elsewhere() -> Generator[RegistryRequest, Response, None]:
        yield RegistryRequest("GET", "/v2/")
        for url in (
            "http://other:5000/x",
            "https://registry:5000/x",
            "http://registry/x",
            "http://registry:5000@o/",
        ):
            yield RegistryRequest("GET", url)
        yield RegistryRequest("GET", "http://REGISTRY:5000/x")

    login = RegistryLogin(BASE, credentials=WHO)
    feed(tags(login), wants("Basic"), TAGS)
    _, asked = feed(authorized(elsewhere(), login), *[(200, {}, b"")] * 6)
    assert signatures(asked) == [BASIC, None, None, None, None, BASIC]
    _, asked = feed(authorized(elsewhere(), login), (200, {}, b""), *[wants(BEARER)] * 4, (200, {}, b""))
    assert len(asked) == 6


@pytest.mark.parametrize(
    ("method", "url", "scope"),
    [
        ("GET", "/v2/", ""),
        ("GET", "/v2/_catalog?n=1", "registry:catalog:*"),
        ("GET", "/v2/a/b/tags/list", "repository:a/b:pull"),
        ("HEAD", "/v2/a/blobs/sha256:0", "repository:a:pull"),
        ("POST", "/v2/a/blobs/uploads/", "repository:a:pull,push"),
        ("PUT", BASE + "/v2/a/b/manifests/v1", "repository:a/b:pull,push"),
        ("DELETE", "/v2/a/manifests/v1", "repository:a:delete"),
    ],
)
def test_each_request_has_the_scope_that_docker_registry_asks_for(method: str, url: str, scope: str) -> None:
    assert scope_of(RegistryRequest(method, url)) == scope


def test_origins_are_compared_without_user_path_and_default_port() -> None:
    assert origin_of("http://u:p@Host:80/x?y") == origin_of("http://host") == "http://host"
    assert origin_of("https://[::1]:443/") == "https://[::1]"
    assert origin_of("https://host:80") == "https://host:80"


def test_a_docker_configuration_is_read_in_all_its_spellings() -> None:
    config = parse_docker_config(
        orjson.dumps(
            {
                "auths": {
                    "localhost:5000": {"auth": base64.b64encode(b"a:b:c").decode()},
                    "https://Registry.example/v2/": {"username": "u", "password": "p"},
                    "https://index.docker.io/v1/": {"auth": base64.b64encode(b"d:e").decode()},
                    "token.example": {"identitytoken": "i"},
                    "both.example": {"auth": base64.b64encode(b"u:").decode(), "identitytoken": "i"},
                    "bad1": {"auth": "!"},
                    "bad2": {},
                    "bad3": "x",
                },
                "credHelpers": {"gcr.io": "gcloud", "evil": "../x", "odd": 1},
                "credsStore": "desktop",
            }
        ),
        where="config.json",
    )
    assert config.find("localhost:5000") == RegistryCredentials("a", "b:c")
    assert config.find("registry.example") == RegistryCredentials("u", "p")
    assert config.find("docker.io") == config.find("registry-1.docker.io") == RegistryCredentials("d", "e")
    assert config.find("token.example") == RegistryCredentials(identity_token="i")
    assert config.find("both.example") == RegistryCredentials("u", identity_token="i")
    assert [config.find(name) for name in ("bad1", "bad2", "bad3", "other")] == [None] * 4
    assert config.find_helper("gcr.io") == "gcloud"
    assert config.find_helper("evil") == config.find_helper("x") == "desktop"
    assert (render_helper_request("docker.io"), render_helper_request("h:1")) == (
        b"https://index.docker.io/v1/",
        b"h:1",
    )


@given(
    st.binary(max_size=40)
    | st.recursive(
        st.none() | st.integers(-9, 9) | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(["auths", "auth", "credHelpers", "h", "Secret", "Username"]), inner
            )
        ),
    ).map(orjson.dumps)
)
def test_no_configuration_and_no_helper_breaks_the_reading(raw: bytes) -> None:
    parse_helper_answer(raw)
    with suppress(InvalidSettingError):
        parse_docker_config(raw, where="x")


def test_a_helper_that_keeps_an_identity_token_says_so() -> None:
    said = orjson.dumps({"Username": "<token>", "Secret": "i"})
    assert parse_helper_answer(said) == RegistryCredentials(identity_token="i")
