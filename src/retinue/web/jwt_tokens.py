"""Verifies JWT bearer tokens of an OAuth server with its published keys (JWKS, RFC 7517).

`JwtReader` accepts only asymmetric signatures and checks ``exp``, ``nbf``, ``iss`` and ``aud``. Errors and
logs contain no part of a token.

`IssuerKeys` reads the keys when the first token arrives, when they are too old, and when a token names an
unknown key, but at most once in `ASK_AGAIN_S`. While the server does not answer, the last keys remain in
use.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import structlog
from cachetools import LRUCache
from joserfc import jws, jwt
from joserfc.errors import BadSignatureError, ClaimError, ExpiredTokenError, JoseError, MissingClaimError
from joserfc.jwk import JWKRegistry, Key
from joserfc.jws import JWSRegistry

from retinue.core.call import Principal
from retinue.core.errors import (
    CallTimedOutError,
    InsufficientScopeError,
    NotAuthenticatedError,
    RetinueError,
    StateError,
)
from retinue.web.http_client import HttpClient
from retinue.web.issued_tokens import SCOPES
from retinue.web.transport import TransportError

ALGORITHMS = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "Ed25519",
)
"""Accepted signature algorithms: asymmetric ones only, never ``none``."""

LIFETIME_S = 3600.0
FILE_LIFETIME_S = 10.0
ASK_AGAIN_S = 10.0
"""Minimum time between two readings of the keys."""

TIMEOUT_S = 5.0
CLOCK_SKEW_S = 30
MAX_KEYS_BYTES = 256 * 1024
MAX_KEYS = 100
MAX_REMEMBERED = 1000
MAX_SUBJECT_LENGTH = 300
MAX_GROUPS = 500

_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "Ed25519": "Ed25519"}
_TYPES = frozenset({"", "jwt", "at+jwt", "application/at+jwt"})
_REASONS = {
    "iss": "it was issued by another issuer (iss)",
    "aud": "it was issued for another audience (aud)",
    "nbf": "it is not valid yet (nbf), or the clock of this machine is behind",
    "exp": "its expiry time is not a number (exp)",
    "sub": "its subject is not a string (sub)",
}

_log = structlog.get_logger("retinue.auth")


@dataclass(frozen=True, slots=True)
class JwtSettings:
    """Required claims of a token, and the mapping of its scopes.

    ``scope_names`` maps words of the claim ``scopes_claim`` to scopes of Retinue. The names of Retinue's own
    scopes, plain or prefixed with ``retinue:``, are always accepted. ``groups_claim`` holds the groups of
    policies, None for none.
    """

    issuer: str
    audiences: Sequence[str]
    jwks_url: str | None = None
    jwks_file: Path | None = None
    scopes_claim: str = "scope"
    groups_claim: str | None = None
    scope_names: Mapping[str, str] = field(default_factory=dict)


class _TokenJwsRegistry(JWSRegistry):
    max_header_length = 4096


_REGISTRY = _TokenJwsRegistry(algorithms=ALGORITHMS, strict_check_header=False)


class _ClaimChecks(jwt.JWTClaimsRegistry):
    def validate_iat(self, value: object) -> None:
        """Accept any: after the clock of this machine was set back, every new token is of the future."""


class JwtReader:
    """Verifies JWTs; ``clock`` gives seconds since 1970.

    Verified claims are remembered by the hash of the token. A known token expires by both clocks, and is not
    refused because the clock of this machine is set back.
    """

    def __init__(
        self,
        settings: JwtSettings,
        http: HttpClient,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._keys = IssuerKeys(http, url=settings.jwks_url, file=settings.jwks_file, clock=monotonic)
        names = {scope: scope for scope in SCOPES} | {f"retinue:{scope}": scope for scope in SCOPES}
        self._scope_names = {**names, **settings.scope_names}
        self._clock = clock
        self._monotonic = monotonic
        self._claims = _ClaimChecks(
            now=lambda: int(clock()),
            leeway=CLOCK_SKEW_S,
            iss={"essential": True, "value": settings.issuer},
            aud={"essential": True, "values": list(settings.audiences)},
            exp={"essential": True},
            sub={"essential": True},
        )
        self._remembered: LRUCache[bytes, tuple[Mapping[str, Any], float]] = LRUCache(MAX_REMEMBERED)
        self._remembered_for: object = None

    async def read(self, token: bytes, place: str) -> Principal | None:
        """The principal of a token; None when it does not have the form of a JWT.

        Raises NotAuthenticatedError with the reason, InsufficientScopeError when it grants no scope of
        Retinue.
        """
        if not token.startswith(b"ey") or token.count(b".") != 2:
            return None
        keys = await self._keys.current()
        if keys is not self._remembered_for:
            # tokens verified with former keys must be verified again
            self._remembered_for = keys
            self._remembered.clear()
        digest = sha256(token).digest()
        claims, until = self._remembered.get(digest, (None, 0.0))
        if claims is None:
            claims = await self._verify(token)
            self._check_claims(claims)
            until = self._monotonic() + claims["exp"] + CLOCK_SKEW_S - self._clock()
            self._remembered[digest] = claims, until
        if self._monotonic() >= until or self._clock() >= claims["exp"] + CLOCK_SKEW_S:
            raise _refuse("it has expired")
        return self._principal(claims)

    async def _verify(self, token: bytes) -> Mapping[str, Any]:
        try:
            header = jws.extract_compact(token, registry=_REGISTRY).headers()
            algorithm, key_id, kind = header.get("alg"), header.get("kid"), str(header.get("typ", ""))
        except (JoseError, ValueError):
            raise _refuse("it is not a JSON Web Token") from None
        if algorithm not in ALGORITHMS:
            raise _refuse(f"it must be signed with one of {', '.join(ALGORITHMS)}")
        if kind.lower() not in _TYPES:
            raise _refuse("it is not an access token")
        key = await self._keys.find(key_id, algorithm)
        if key is None:
            raise _refuse("it is signed with a key that its issuer does not publish")
        try:
            return jwt.decode(token, key, algorithms=ALGORITHMS, registry=_REGISTRY).claims
        except BadSignatureError:
            raise _refuse("its signature is wrong") from None
        except (JoseError, ValueError, TypeError):
            raise _refuse("it cannot be verified with the key that it names") from None

    def _check_claims(self, claims: Mapping[str, Any]) -> None:
        try:
            self._claims.validate(dict(claims))
        except ExpiredTokenError:
            raise _refuse("it has expired") from None
        except MissingClaimError as error:
            raise _refuse(f"it lacks a claim: {error.claim}") from None
        except ClaimError as error:
            raise _refuse(_REASONS.get(error.claim, "one of its claims is wrong")) from None

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        subject = claims["sub"]
        if not 0 < len(subject) <= MAX_SUBJECT_LENGTH:
            raise _refuse("its subject is too long")
        words = _read_words(claims.get(self._settings.scopes_claim))
        scopes = frozenset(self._scope_names[word] for word in words if word in self._scope_names)
        if not scopes:
            raise InsufficientScopeError(
                "this token grants no scope of this mesh",
                scopes=SCOPES[:2],
                remedy=f"request one of {', '.join(SCOPES)} from its issuer, or map its scopes in "
                "auth.scopes",
            )
        groups_claim = self._settings.groups_claim
        groups = () if groups_claim is None else _read_words(claims.get(groups_claim))
        if len(groups) > MAX_GROUPS or any(len(group) > MAX_SUBJECT_LENGTH for group in groups):
            raise _refuse(f"it names more than {MAX_GROUPS} groups, or a too long one")
        return Principal(f"jwt:{subject}", "token", scopes, groups=groups)


class IssuerKeys:
    """The keys at ``url`` or in ``file``, read by one task at a time; ``clock`` is monotonic, in seconds."""

    def __init__(
        self,
        http: HttpClient,
        *,
        url: str | None = None,
        file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._http = http
        self._url = url
        self._file = file
        self._clock = clock
        self._keys: tuple[Key, ...] = ()
        self._read_at = self._asked_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def current(self) -> tuple[Key, ...]:
        """The known keys, the same object until they change.

        Old keys from a url are refreshed in the background.
        """
        lifetime_s = FILE_LIFETIME_S if self._url is None else LIFETIME_S
        if self._clock() - self._read_at >= lifetime_s:
            reading = self._start()
            if reading is not None and (not self._keys or self._url is None):
                await asyncio.shield(reading)
        return self._keys

    async def find(self, key_id: object, algorithm: str) -> Key | None:
        """Find a key by id and algorithm; a token without key id gets the only matching key.

        Raises NotAuthenticatedError while no key at all is known.
        """
        key = self._find(key_id, algorithm)
        if key is None and (reading := self._start()) is not None:
            await asyncio.shield(reading)
            key = self._find(key_id, algorithm)
        if key is None and not self._keys:
            raise NotAuthenticatedError(
                "the signing keys of the token's issuer are not available", remedy="try again later"
            )
        return key

    def _start(self) -> asyncio.Task[None] | None:
        """The running read task, or a new one; None within `ASK_AGAIN_S` of the last."""
        if self._reading is None:
            if self._clock() - self._asked_at < ASK_AGAIN_S:
                return None
            self._asked_at = self._clock()
            self._reading = asyncio.create_task(self._read(), name="read the keys of the issuer")
            self._reading.add_done_callback(self._end_reading)
        return self._reading

    def _end_reading(self, _: asyncio.Task[None]) -> None:
        self._reading = None

    def _find(self, key_id: object, algorithm: str) -> Key | None:
        fit = [key for key in self._keys if _fits(key, algorithm)]
        if key_id is None:
            return fit[0] if len(fit) == 1 else None
        return next((key for key in fit if key.kid == key_id), None)

    async def _read(self) -> None:
        try:
            keys = _parse_keys(await self._fetch())
        except (RetinueError, TransportError, ValueError) as error:
            _log.warning("keys of the issuer not read", problem=str(error))
            return
        self._read_at = self._clock()
        if [key.as_dict() for key in keys] != [key.as_dict() for key in self._keys]:
            self._keys = keys

    async def _fetch(self) -> bytes:
        file, url = self._file, self._url
        if file is not None:
            try:
                return await asyncio.to_thread(file.read_bytes)
            except OSError as error:
                raise StateError(f"{file}: {error.strerror}") from error
        assert url is not None, "url or file is set"
        try:
            reply = await self._http.request(
                "GET",
                url,
                headers={"accept": "application/jwk-set+json, application/json"},
                timeout_s=TIMEOUT_S,
                max_response_bytes=MAX_KEYS_BYTES,
                what="the keys of auth.jwks_url",
            )
        except CallTimedOutError as error:
            raise StateError(error.message) from error
        if reply.status != 200:
            raise ValueError(f"auth.jwks_url answered with status {reply.status}")
        return reply.body


def _parse_keys(body: bytes) -> tuple[Key, ...]:
    """Parse the public signature keys of a key set; other keys are skipped (RFC 7517, section 5)."""
    try:
        rows = orjson.loads(body)["keys"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise ValueError("the content of auth.jwks_url or auth.jwks_file is not a JSON Web Key Set") from None
    keys = []
    for row in rows[:MAX_KEYS] if isinstance(rows, list) else ():
        if not isinstance(row, dict) or row.get("kty") == "oct" or row.get("use", "sig") != "sig":
            continue
        try:
            keys.append(JWKRegistry.import_key(row))
        except (JoseError, ValueError, TypeError, KeyError):
            continue
    if not keys:
        raise ValueError("the key set has no key that can verify a signature")
    return tuple(keys)


def _fits(key: Key, algorithm: str) -> bool:
    """Whether a key is for this algorithm, by its type, curve and ``alg``."""
    fields = key.as_dict(private=False)
    if fields.get("alg", algorithm) != algorithm and not (
        fields.get("alg") == "EdDSA" and algorithm == "Ed25519"
    ):
        return False
    curve = _CURVES.get(algorithm)
    return fields.get("kty") == "RSA" if curve is None else fields.get("crv") == curve


def _read_words(value: object) -> tuple[str, ...]:
    """The words of a claim, which is a text or a list."""
    words = value.split() if isinstance(value, str) else value if isinstance(value, list) else ()
    return tuple(word for word in words if isinstance(word, str))


def _refuse(
    reason: str, remedy: str = "get a token from the configured issuer (auth.issuer)"
) -> NotAuthenticatedError:
    return NotAuthenticatedError(f"this token is not accepted: {reason}", remedy=remedy)
