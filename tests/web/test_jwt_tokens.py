"""Tokens of an authorization server: who they say it is, and every way in which they are not good."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, Key, KeySet, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry
from starlette.types import Receive, Scope, Send
from structlog.testing import capture_logs

from retinue.core.call import Principal
from retinue.core.errors import AccessError, InsufficientScopeError, NotAuthenticatedError
from retinue.web.http_client import HttpClient
from retinue.web.jwt_tokens import ALGORITHMS, ASK_AGAIN_S, CLOCK_SKEW_S, LIFETIME_S, JwtReader, JwtSettings
from tests.requirements import requirement
from tests.serving import serve_app

ISSUER = "https://login.example.org"
AUDIENCE = "https://hub.example.org"
HOST = "hub.example.org"
NOW = 1_800_000_000.0
RSA = RSAKey.generate_key(2048, {"kid": "rsa-1"})
KEYS: dict[str, Key] = {
    "RS256": RSA,
    "PS512": RSA,
    "ES256": ECKey.generate_key("P-256", {"kid": "ec-1"}),
    "ES384": ECKey.generate_key("P-384", {"kid": "ec-2"}),
    "Ed25519": OKPKey.generate_key("Ed25519", {"kid": "ed-1"}),
}


class Issuer:
    """Serves a set of keys, counts who asks, and may be down or slow."""

    def __init__(self, *keys: Key) -> None:
        self.keys = list(keys)
        self.asked = 0
        self.status = 200
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        self.asked += 1
        await self.gate.wait()
        body = orjson.dumps(KeySet(self.keys).as_dict(private=False))
        headers = [(b"location", b"/elsewhere")] if self.status in (301, 302) else []
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class Bench:
    """A reader of tokens, its clock, and the issuer that it asks."""

    def __init__(self, issuer: Issuer, url: str | None, http: HttpClient, **settings: Any) -> None:
        self.issuer = issuer
        self.now = NOW
        self.seconds = 0.0
        wanted = {"issuer": ISSUER, "audiences": [AUDIENCE], "jwks_url": url, **settings}
        self.reader = JwtReader(
            JwtSettings(**wanted), http, clock=lambda: self.now, monotonic=lambda: self.seconds
        )

    async def read(self, token: str) -> Principal | None:
        return await self.reader.read(token.encode(), HOST)


@pytest.fixture
async def http() -> AsyncIterator[HttpClient]:
    async with HttpClient() as http:
        yield http


@pytest.fixture
async def bench(http: HttpClient) -> AsyncIterator[Bench]:
    issuer = Issuer(*{id(key): key for key in KEYS.values()}.values())
    async with serve_app(issuer) as url:
        yield Bench(issuer, url, http)


def make_token(
    algorithm: str = "RS256", key: Key | None = None, *, header: dict[str, Any] | None = None, **changes: Any
) -> str:
    """A good token, except for ``changes`` to its claims and to its ``header``; None takes one away."""
    key = key or KEYS[algorithm]
    headers = {"alg": algorithm, "kid": key.kid, **(header or {})}
    claims = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "alice",
        "exp": int(NOW) + 300,
        "nbf": int(NOW) - 5,
        "iat": int(NOW) - 5,
        "scope": "openid mesh",
        **changes,
    }
    registry = JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    return jwt.encode(_kept(headers), _kept(claims), key, algorithms=[algorithm], registry=registry)


def _kept(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}


@requirement("S-17")
@pytest.mark.parametrize("algorithm", KEYS)
async def test_a_good_token_says_who_sends_it(bench: Bench, algorithm: str) -> None:
    assert await bench.read(make_token(algorithm)) == Principal("jwt:alice", "token", frozenset({"mesh"}))


async def test_the_keys_are_asked_for_once(bench: Bench) -> None:
    for _ in range(3):
        await bench.read(make_token())
    await asyncio.gather(*(bench.read(make_token("ES256", sub=f"user {n}")) for n in range(20)))
    assert bench.issuer.asked == 1


async def test_many_first_tokens_wait_for_one_reading(bench: Bench) -> None:
    bench.issuer.gate.clear()
    reading = [asyncio.create_task(bench.read(make_token(sub=f"user {n}"))) for n in range(10)]
    while not bench.issuer.asked:
        await asyncio.sleep(0)
    bench.issuer.gate.set()
    found = [one.id for one in await asyncio.gather(*reading) if one is not None]
    assert found == [f"jwt:user {n}" for n in range(10)]
    assert bench.issuer.asked == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": int(NOW) - CLOCK_SKEW_S - 1}, "it has expired"),
        ({"exp": None}, "lacks a claim: exp"),
        ({"exp": "tomorrow"}, "expiry time is not a number"),
        ({"nbf": int(NOW) + CLOCK_SKEW_S + 1}, "not valid yet"),
        ({"iss": "https://evil.example.org"}, "another issuer"),
        ({"iss": ISSUER + "/"}, "another issuer"),
        ({"iss": [ISSUER]}, "another issuer"),
        ({"iss": None}, "lacks a claim: iss"),
        ({"aud": "https://evil.example.org"}, "another audience"),
        ({"aud": []}, "another audience"),
        ({"aud": None}, "lacks a claim: aud"),
        ({"sub": None}, "lacks a claim: sub"),
        ({"sub": 7}, "subject"),
        ({"sub": ""}, "subject"),
        ({"sub": "x" * 301}, "subject"),
        ({"header": {"typ": "secevent+jwt"}}, "not an access token"),
        ({"header": {"kid": "other"}}, "does not publish"),
    ],
)
async def test_a_token_that_is_not_good_says_why_and_nothing_else(
    bench: Bench, changes: dict[str, Any], reason: str
) -> None:
    token = make_token(**changes)
    with capture_logs() as logs, pytest.raises(NotAuthenticatedError) as caught:
        await bench.read(token)
    said = f"{caught.value} {caught.value.remedy} {caught.value.data} {logs}"
    assert reason in str(caught.value)
    assert caught.value.__cause__ is None
    assert not any(part in said for part in (*token.split("."), "alice", "evil.example.org"))


async def test_time_is_forgiven_a_little(bench: Bench) -> None:
    assert await bench.read(make_token(exp=int(NOW) - CLOCK_SKEW_S + 2))
    assert await bench.read(make_token(nbf=int(NOW) + CLOCK_SKEW_S - 2))


async def test_a_token_that_was_good_expires(bench: Bench) -> None:
    token = make_token()
    assert await bench.read(token)
    bench.now += 400
    with pytest.raises(NotAuthenticatedError, match="expired"):
        await bench.read(token)


@pytest.mark.parametrize("step_s", [-3600, -120])
async def test_a_known_token_is_good_and_expires_on_time_when_the_clock_was_set_back(
    bench: Bench, step_s: float
) -> None:
    token = make_token()
    assert await bench.read(token)
    bench.now += step_s
    assert await bench.read(token)
    assert await bench.read(make_token(sub="bob", nbf=None))
    bench.seconds += 400
    with pytest.raises(NotAuthenticatedError, match="expired"):
        await bench.read(token)


async def test_one_of_several_audiences_is_enough(bench: Bench) -> None:
    assert await bench.read(make_token(aud=["https://other.example.org", AUDIENCE]))


def forge(header: dict[str, Any], signature: bytes = b"") -> str:
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": int(NOW) + 300, "scope": "mesh"}
    parts = (orjson.dumps(header), orjson.dumps(claims), signature)
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


async def test_what_is_not_signed_or_with_a_shared_secret_is_refused(bench: Bench) -> None:
    unsigned = [forge({"alg": "none"}), forge({"alg": "none", "kid": "rsa-1"}), forge({"alg": ["RS256"]})]
    # with the public key, which everybody knows, as the secret
    confused = forge({"alg": "HS256", "kid": "rsa-1"}, RSA.as_pem(private=False)[:32])
    for token in (*unsigned, confused):
        with pytest.raises(NotAuthenticatedError):
            await bench.read(token)
    assert not {"none", "HS256", "HS384", "HS512"} & set(ALGORITHMS)


async def test_a_key_that_the_token_brings_along_is_not_looked_at(bench: Bench) -> None:
    mine = RSAKey.generate_key(2048, {"kid": "rsa-1"})
    jwk = mine.as_dict(private=False)
    for extra in ({"jwk": jwk}, {"jku": "https://evil.example.org/keys"}, {}):
        with pytest.raises(NotAuthenticatedError, match="signature is wrong"):
            await bench.read(make_token("RS256", mine, header=extra))


async def test_a_key_makes_only_the_signatures_of_its_kind(bench: Bench) -> None:
    with pytest.raises(NotAuthenticatedError, match="does not publish"):
        await bench.read(make_token("ES256", header={"kid": "ec-2"}))
    with pytest.raises(NotAuthenticatedError, match="does not publish"):
        await bench.read(make_token("RS256", header={"kid": "ec-1"}))


async def test_without_a_kid_the_only_fitting_key_counts(bench: Bench) -> None:
    assert await bench.read(make_token("ES256", header={"kid": None}))


@pytest.mark.parametrize("token", ["", "a.b.c", "rtn_0_x", "ey", "eyJ.a", "ordinary"])
async def test_what_is_no_jwt_is_left_to_others(bench: Bench, token: str) -> None:
    assert await bench.read(token) is None


@pytest.mark.parametrize(
    "token", ["ey..", "eyJ.eyJ.eyJ", "ey\u00e4.b.c", "eyJhbGciOiJSUzI1NiJ9.x.y", "ey" + "a" * 9000 + ".b.c"]
)
async def test_broken_tokens_are_refused(bench: Bench, token: str) -> None:
    with pytest.raises(NotAuthenticatedError):
        await bench.read(token)


async def test_a_new_key_is_found_but_not_asked_for_all_the_time(bench: Bench) -> None:
    await bench.read(make_token())
    new = RSAKey.generate_key(2048, {"kid": "rsa-2"})
    bench.issuer.keys.append(new)
    with pytest.raises(NotAuthenticatedError, match="does not publish"):
        await bench.read(make_token("RS256", new))
    assert bench.issuer.asked == 1
    bench.seconds += ASK_AGAIN_S
    assert await bench.read(make_token("RS256", new))
    for n in range(20):
        with pytest.raises(NotAuthenticatedError):
            await bench.read(make_token(header={"kid": f"made up {n}"}))
    assert bench.issuer.asked == 2


async def test_a_key_that_was_taken_back_is_good_no_longer_than_an_hour(bench: Bench) -> None:
    token = make_token(exp=int(NOW) + 2 * int(LIFETIME_S))
    assert await bench.read(token)
    bench.issuer.keys = [KEYS["ES256"]]
    bench.seconds += LIFETIME_S
    assert await bench.read(token), "what is old serves while it is read anew"
    while await _is_taken(bench, token):
        await asyncio.sleep(0)
    assert bench.issuer.asked == 2


async def _is_taken(bench: Bench, token: str) -> bool:
    try:
        return await bench.read(token) is not None
    except AccessError:
        return False


async def test_an_issuer_that_is_down_keeps_nobody_out_whose_key_is_known(bench: Bench) -> None:
    await bench.read(make_token())
    bench.issuer.status = 503
    bench.seconds += LIFETIME_S
    with capture_logs() as logs:
        assert await bench.read(make_token(sub="bob"))
        while not logs:
            await asyncio.sleep(0)
    assert "503" in logs[0]["problem"]


@pytest.mark.parametrize("status", [500, 404, 301, 302])
async def test_without_any_key_nobody_is_let_in_and_no_redirect_is_followed(
    bench: Bench, status: int
) -> None:
    bench.issuer.status = status
    with pytest.raises(NotAuthenticatedError, match="are not available"):
        await bench.read(make_token())
    assert bench.issuer.asked == 1


async def test_the_guard_of_outgoing_requests_holds_for_keys_too() -> None:
    issuer = Issuer(RSA)
    async with serve_app(issuer) as url, HttpClient(allow_private=False) as http:
        with pytest.raises(NotAuthenticatedError, match="are not available"):
            await Bench(issuer, url, http).read(make_token())
    assert not issuer.asked


async def test_keys_in_a_file_are_read_and_a_shared_secret_among_them_is_none(
    tmp_path: Path, http: HttpClient
) -> None:
    secret = OctKey.generate_key(256, {"kid": "shared"})
    rows = [secret.as_dict(private=True), {"kty": "PQ", "kid": "new"}, {"use": "enc"}]
    file = tmp_path / "keys.json"
    file.write_bytes(orjson.dumps({"keys": [*rows, RSA.as_dict(private=False)]}))
    bench = Bench(Issuer(), None, http, jwks_file=file)
    assert await bench.read(make_token())
    forged = jwt.encode({"alg": "HS256", "kid": "shared"}, {"sub": "alice"}, secret, algorithms=["HS256"])
    with pytest.raises(NotAuthenticatedError):
        await bench.read(forged)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"keys": 3}', b'{"keys": []}', b'{"keys": [3, {"kty": "RSA"}]}']
)
async def test_a_file_without_keys_lets_nobody_in(tmp_path: Path, http: HttpClient, content: bytes) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(content)
    with pytest.raises(NotAuthenticatedError, match="are not available"):
        await Bench(Issuer(), None, http, jwks_file=file).read(make_token())


@requirement("S-17")
@pytest.mark.parametrize(
    ("scope", "scopes"),
    [
        ("exposed runs_code other", {"exposed", "runs_code"}),
        ("retinue:mesh", {"mesh"}),
        (["mesh", 3, "other"], {"mesh"}),
        ("agents.write", {"mesh"}),
    ],
)
async def test_scopes_are_ours_or_mapped(http: HttpClient, scope: Any, scopes: set[str]) -> None:
    issuer = Issuer(RSA)
    async with serve_app(issuer) as url:
        found = await Bench(issuer, url, http, scope_names={"agents.write": "mesh"}).read(
            make_token(scope=scope)
        )
    assert found is not None
    assert found.scopes == scopes


@pytest.mark.parametrize("scope", [None, "", "openid", 7, {"mesh": 1}, "private", "hooks"])
async def test_a_token_without_a_scope_of_ours_lacks_one(bench: Bench, scope: Any) -> None:
    with pytest.raises(InsufficientScopeError) as caught:
        await bench.read(make_token(scope=scope))
    assert caught.value.scopes == ("exposed", "mesh")


async def test_a_claim_may_name_the_groups_of_policies(http: HttpClient) -> None:
    issuer = Issuer(RSA)
    async with serve_app(issuer) as url:
        bench = Bench(issuer, url, http, groups_claim="roles")
        for claim, groups in ((["a", 7, "b c"], ("a", "b c")), ("a b", ("a", "b")), (None, ())):
            principal = await bench.read(make_token(roles=claim))
            assert principal is not None
            assert principal.groups == groups
        with pytest.raises(NotAuthenticatedError, match="more than 500 groups"):
            await bench.read(make_token(roles=[str(number) for number in range(501)]))


async def test_the_claim_of_the_scopes_can_have_another_name(http: HttpClient) -> None:
    issuer = Issuer(RSA)
    async with serve_app(issuer) as url:
        found = await Bench(issuer, url, http, scopes_claim="scp").read(
            make_token(scp=["exposed"], scope="runs_code")
        )
    assert found is not None
    assert found.scopes == {"exposed"}
