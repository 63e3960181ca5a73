"""Bearer tokens of an OAuth authorization server: JWTs, checked against its published keys.

Only signatures by asymmetric keys are taken, and ``exp``, ``nbf``, ``iss`` and ``aud`` must be right. No
part of a token stands in any error or log.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from joserfc import jws, jwt
from joserfc.errors import BadSignatureError, ClaimError, ExpiredTokenError, JoseError, MissingClaimError
from joserfc.jws import JWSRegistry

from retinue.core.call import Principal
from retinue.core.errors import (
    InsufficientScopeError,
    NotAuthenticatedError,
)
from retinue.drivers.http import HttpClient
from retinue.drivers.issuer_keys import IssuerKeys
from retinue.drivers.tokens import SCOPES

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
"""What may sign; ``none`` and everything that shares a secret with the signer are not among them."""

CLOCK_SKEW_S = 30
MAX_REMEMBERED = 1000
MAX_SUBJECT_LENGTH = 300

_TYPES = frozenset({"", "jwt", "at+jwt", "application/at+jwt"})


@dataclass(frozen=True, slots=True)
class JwtSettings:
    """What a token must say, and what it then may do.

    ``scope_names`` maps words of the claim ``scopes_claim`` to our scopes; our own names, plain and with
    ``retinue:`` before them, count in any case.
    """

    issuer: str
    audiences: Sequence[str]
    jwks_url: str | None = None
    jwks_file: Path | None = None
    scopes_claim: str = "scope"
    scope_names: Mapping[str, str] = field(default_factory=dict)


class _Registry(JWSRegistry):
    max_header_length = 4096


_REGISTRY = _Registry(algorithms=ALGORITHMS, strict_check_header=False)


class JwtReader:
    """Knows who sends a JWT; ``clock`` gives seconds since 1970."""

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
        self._claims = jwt.JWTClaimsRegistry(
            now=lambda: int(clock()),
            leeway=CLOCK_SKEW_S,
            iss={"essential": True, "value": settings.issuer},
            aud={"essential": True, "values": list(settings.audiences)},
            exp={"essential": True},
            sub={"essential": True},
        )
        self._remembered: OrderedDict[bytes, Mapping[str, Any]] = OrderedDict()
        self._remembered_for: object = None

    async def read(self, token: bytes, place: str) -> Principal | None:
        """Who sends this token; None where it has not the form of a JWT.

        Raises NotAuthenticatedError with the reason, InsufficientScopeError when it opens nothing here.
        """
        if not token.startswith(b"ey") or token.count(b".") != 2:
            return None
        keys = await self._keys.current()
        if keys is not self._remembered_for:
            # what was good by other keys may be so no more
            self._remembered_for = keys
            self._remembered.clear()
        digest = sha256(token).digest()
        claims = self._remembered.get(digest)
        if claims is None:
            claims = self._remembered[digest] = await self._verify(token)
            if len(self._remembered) > MAX_REMEMBERED:
                self._remembered.popitem(last=False)
        self._check_claims(claims)
        return self._principal(claims)

    async def _verify(self, token: bytes) -> Mapping[str, Any]:
        try:
            header = jws.extract_compact(token, registry=_REGISTRY).headers()
            algorithm, key_id, kind = header.get("alg"), header.get("kid"), str(header.get("typ", ""))
        except (JoseError, ValueError):
            raise _refuse("it is no JSON Web Token") from None
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
            raise _refuse("it cannot be checked with the key that it names") from None

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
        said = claims.get(self._settings.scopes_claim)
        words = said.split() if isinstance(said, str) else said if isinstance(said, list) else []
        scopes = frozenset(
            self._scope_names[word] for word in words if isinstance(word, str) and word in self._scope_names
        )
        if not scopes:
            raise InsufficientScopeError(
                "this token has no scope of this mesh",
                scopes=SCOPES[:2],
                remedy=f"ask its issuer for one of {', '.join(SCOPES)}, or map its own in auth.scopes",
            )
        return Principal(f"jwt:{subject}", "token", scopes)


_REASONS = {
    "iss": "it is of another issuer",
    "aud": "it is meant for somebody else (aud)",
    "nbf": "it is not good yet",
    "iat": "it was issued in the future",
    "exp": "its time of expiry cannot be read",
    "sub": "its subject is no text",
}


def _refuse(
    reason: str, remedy: str = "get one from the issuer that this server names"
) -> NotAuthenticatedError:
    return NotAuthenticatedError(f"this token is not taken: {reason}", remedy=remedy)
