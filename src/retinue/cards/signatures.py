"""Signs agent cards and verifies signatures: JWS with a detached payload (RFC 7515 appendix F).

Two payloads are signed. That of an A2A card is its canonical form (RFC 8785) without ``signatures``, as the
A2A specification says and its SDK does it: only the fields of version 1.x, and nothing that is empty. That of
a published pallet card is its bytes as they are, and the signature stands in the manifest.

The header of a signature names its key (``kid``, the thumbprint of RFC 7638), when it was made (``iat``) and,
where it ends, when (``exp``). A key is trusted because a person has said so; an address in a card is never
asked for one. This module does no I/O.
"""

from __future__ import annotations

import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal

import orjson

from retinue.core.errors import CardSignatureError, InvalidSettingError
from retinue.core.record import SignatureState

Json = Mapping[str, Any]
Policy = Literal["require", "warn", "off"]

ALGORITHM = "ES256"
ALGORITHMS = ("ES256", "ES384", "ES512", "Ed25519", "EdDSA", "RS256", "RS384", "RS512", "PS256", "PS384")
"""Asymmetric ones only, because a verifier must not be able to sign."""

CLOCK_SKEW_S = 30
MAX_SIGNATURES = 10
MAX_KEYS = 1000

_DAY_S = 86_400.0
_EXACT = 2**53


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key with which cards are signed, as JWK (RFC 7517) on P-256."""

    jwk: Json = field(repr=False)

    @classmethod
    def create(cls) -> SigningKey:
        """A new random key."""
        from joserfc.jwk import ECKey  # takes 50 ms to import

        made = ECKey.generate_key("P-256")
        return cls({**made.as_dict(private=True), "kid": made.thumbprint(), "alg": ALGORITHM, "use": "sig"})

    @property
    def kid(self) -> str:
        """The name of the key, which does not reveal it."""
        return str(self.jwk["kid"])

    @property
    def public(self) -> Json:
        """The public half, as JWK."""
        return {key: value for key, value in self.jwk.items() if key != "d"}


@dataclass(frozen=True, slots=True)
class CardSigner:
    """Signs cards with ``key``; a signature ends after ``valid_days``, None = never."""

    key: SigningKey
    valid_days: float | None = None
    clock: Callable[[], float] = time.time

    @property
    def valid_s(self) -> float | None:
        """How long a signature is valid."""
        return None if self.valid_days is None else self.valid_days * _DAY_S

    def sign(self, payload: bytes, *, jku: str | None = None) -> dict[str, str]:
        """The signature of a payload, as an entry of ``signatures``; ``jku`` is the url of the key."""
        from joserfc import jws
        from joserfc.jwk import ECKey

        now = int(self.clock())
        header: dict[str, Any] = {"alg": ALGORITHM, "typ": "JOSE", "kid": self.key.kid, "iat": now}
        if jku is not None:
            header["jku"] = jku
        if self.valid_s is not None:
            header["exp"] = now + int(self.valid_s)
        signed = jws.serialize_compact(
            header,
            payload,
            ECKey.import_key(dict(self.key.jwk)),
            algorithms=[ALGORITHM],
            registry=_registry(),
        )
        protected, _, signature = signed.split(".")
        return {"protected": protected, "signature": signature}

    def sign_agent_card(self, card: Json, *, jku: str | None = None) -> dict[str, Any]:
        """An A2A card with a signature of ours in place of others."""
        return {**card, "signatures": [self.sign(canonical_forms(card)[0], jku=jku)]}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a verification: the state, the owner of the key, and the reason where it is not valid."""

    state: SignatureState
    owner: str = ""
    reason: str = ""


class TrustedKeys:
    """The public keys that are trusted, by ``kid``; ``owner`` is the name a person gave them."""

    def __init__(self, sets: Mapping[str, Json]) -> None:
        self._keys: dict[str, tuple[str, Any]] = {}
        self._imported: dict[str, Any] = {}
        for owner, document in sets.items():
            for row in read_keys(document, owner):
                self._keys[str(row["kid"])] = (owner, row)

    def __len__(self) -> int:
        return len(self._keys)

    def list_keys(self) -> list[tuple[str, Json]]:
        """Owner and public key of each."""
        return list(self._keys.values())

    def verify(self, signatures: object, payloads: Sequence[bytes], now: float | None = None) -> Verdict:
        """Whether one of the signatures is of a trusted key, over one of the payloads, and has not ended.

        Of several signatures the best counts. ``payloads`` are the forms in which the same content may have
        been signed.
        """
        if not isinstance(signatures, list) or not signatures:
            return Verdict("none", reason="it is not signed")
        verdicts = [
            self._verify(signature, payloads, time.time() if now is None else now)
            for signature in _first(signatures)
        ]
        order: tuple[SignatureState, ...] = ("valid", "invalid", "unknown_key")
        # before a malformed signature the one that names a trusted key
        return min(verdicts, key=lambda verdict: (order.index(verdict.state), not verdict.owner))

    def _verify(self, signature: Any, payloads: Sequence[bytes], now: float) -> Verdict:
        try:
            protected, value = str(signature["protected"]), str(signature["signature"])
            header = orjson.loads(urlsafe_b64decode(protected + "=" * (-len(protected) % 4)))
            kid, algorithm, ends = header.get("kid"), header.get("alg"), header.get("exp")
        except (KeyError, TypeError, ValueError, AttributeError):
            return Verdict("invalid", reason="its signature is malformed")
        owner, row = self._keys.get(kid, ("", None)) if isinstance(kid, str) else ("", None)
        if row is None:
            return Verdict(
                "unknown_key", reason=f"it is signed with the key {str(kid)[:60]}, which is not trusted"
            )
        if algorithm not in ALGORITHMS:
            return Verdict(
                "invalid", owner, f"it is signed with {str(algorithm)[:20]}, which is not accepted"
            )
        if ends is not None and not _is_number(ends):
            return Verdict("invalid", owner, "the end of its signature is not a number")
        key = self._imported.get(kid)
        if key is None:
            # takes longer than a verification
            key = self._imported[kid] = _import(row)
        if not any(_fits(protected, payload, value, key) for payload in payloads):
            return Verdict("invalid", owner, f"its content is not what {owner} signed")
        if ends is not None and now > ends + CLOCK_SKEW_S:
            return Verdict("invalid", owner, f"its signature has expired at {_date(ends)}")
        return Verdict("valid", owner)


class CardVerifier:
    """Decides what cards are taken in: ``policy`` over the keys that ``read_keys`` gives now.

    ``require`` refuses a card without a valid signature. ``warn`` takes it and tells its state, unless the
    signature names a trusted key and is invalid: such a card was changed, or has expired, and is refused.
    ``off`` does not look. ``revision`` of the keys changes with them.
    """

    def __init__(
        self, policy: Policy, trusted: Callable[[], TrustedKeys], revision: Callable[[], object]
    ) -> None:
        self.policy = policy
        self.revision = revision
        self._trusted = trusted

    def check(self, signatures: object, payloads: Sequence[bytes], *, reference: str) -> Verdict:
        """The verdict on a card. Raises CardSignatureError, which names the reason and the remedy."""
        if self.policy == "off":
            return Verdict("none")
        verdict = (
            self._trusted().verify(signatures, payloads) if signatures else Verdict("none", reason=_NONE)
        )
        is_forged = verdict.state == "invalid" and verdict.owner
        if verdict.state != "valid" and (self.policy == "require" or is_forged):
            raise CardSignatureError(reference, verdict.state, verdict.reason)
        return verdict


_NONE = "it is not signed"


def canonical_forms(card: Json) -> tuple[bytes, ...]:
    """What may have been signed of an A2A card: the form of version 1.x first, then that of 0.3.

    That of 1.x has the fields of 1.x only, without what is empty, as the SDK of A2A does it; that of 0.3 is
    the document without ``signatures``. Forms that cannot be made, such as one with NaN, are left out.
    """
    import rfc8785

    forms = []
    for form in (_clean(_project(card, _CARD)), {k: v for k, v in card.items() if k != "signatures"}):
        try:
            forms.append(rfc8785.dumps(_as_doubles(form)))
        except (rfc8785.CanonicalizationError, RecursionError):
            continue
    return tuple(dict.fromkeys(forms))


def read_keys(document: object, owner: str) -> list[dict[str, Any]]:
    """The public keys of a JWK set or of one JWK, each with its ``kid``; raises InvalidSettingError."""
    from joserfc.errors import JoseError
    from joserfc.jwk import JWKRegistry

    rows = document.get("keys", [document]) if isinstance(document, Mapping) else None
    if not isinstance(rows, list) or not 0 < len(rows) <= MAX_KEYS:
        raise InvalidSettingError(owner, "it is not a set of public keys", remedy="give a JWK set (RFC 7517)")
    keys = []
    for row in rows:
        try:
            if row["kty"] == "oct":
                raise ValueError("a shared secret")
            key = JWKRegistry.import_key(dict(row))
            public = {**key.as_dict(private=False), "kid": str(row.get("kid") or key.thumbprint())}
        except (JoseError, ValueError, TypeError, KeyError, AttributeError):
            remedy = "give EC, OKP or RSA keys as JWK (RFC 7517)"
            raise InvalidSettingError(owner, "one of its keys cannot be read", remedy=remedy) from None
        keys.append(public)
    return keys


def _import(row: Json) -> Any:
    from joserfc.jwk import JWKRegistry

    # the header of the signature names the algorithm, of those that fit the key
    return JWKRegistry.import_key({k: v for k, v in row.items() if k not in ("alg", "use", "key_ops")})


def _fits(protected: str, payload: bytes, signature: str, key: Any) -> bool:
    from joserfc import jws
    from joserfc.errors import JoseError

    compact = f"{protected}..{signature}"
    try:
        jws.deserialize_compact(
            compact, key, algorithms=list(ALGORITHMS), registry=_registry(), payload=payload
        )
    except (JoseError, ValueError, TypeError):
        return False
    return True


@lru_cache(maxsize=1)
def _registry() -> Any:
    from joserfc.jws import JWSRegistry

    class CardJwsRegistry(JWSRegistry):
        max_header_length = 4096

        def check_header(self, header: dict[str, Any]) -> None:
            """As JWS, with "crit"; the SDK of A2A writes null for omitted fields, such as ``jku``."""
            super().check_header({key: value for key, value in header.items() if value is not None})

    # iat and exp are no header fields of JWS
    return CardJwsRegistry(algorithms=list(ALGORITHMS), strict_check_header=False)


def _first(signatures: list[Any]) -> Iterable[Any]:
    return signatures[:MAX_SIGNATURES]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _date(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return str(seconds)


_ANY: Mapping[str, Any] = {}
"""A value that is taken whole: a map of texts, a list of texts, or any JSON."""

_SCHEMES = {"schemes": _ANY}
_CARD: Mapping[str, Any] = {
    "name": _ANY,
    "description": _ANY,
    "supportedInterfaces": {"url": _ANY, "protocolBinding": _ANY, "tenant": _ANY, "protocolVersion": _ANY},
    "provider": {"url": _ANY, "organization": _ANY},
    "version": _ANY,
    "documentationUrl": _ANY,
    "capabilities": {
        "streaming": _ANY,
        "pushNotifications": _ANY,
        "extendedAgentCard": _ANY,
        "extensions": {"uri": _ANY, "description": _ANY, "required": _ANY, "params": _ANY},
    },
    "securitySchemes": _ANY,
    "securityRequirements": _SCHEMES,
    "defaultInputModes": _ANY,
    "defaultOutputModes": _ANY,
    "skills": {
        "id": _ANY,
        "name": _ANY,
        "description": _ANY,
        "tags": _ANY,
        "examples": _ANY,
        "inputModes": _ANY,
        "outputModes": _ANY,
        "securityRequirements": _SCHEMES,
    },
    "iconUrl": _ANY,
}
"""The fields of a card of version 1.x (a2a.proto)."""

_FALSE_IS_ABSENT = ("required", "pkceRequired")
"""Flags without presence in the protocol: false is not written."""


def _project(value: Any, fields: Mapping[str, Any]) -> Any:
    if not fields:
        return value
    if isinstance(value, list):
        return [_project(item, fields) for item in value]
    if not isinstance(value, Mapping):
        return value
    kept = {key: _project(value[key], inner) for key, inner in fields.items() if key in value}
    for flag in _FALSE_IS_ABSENT:
        if kept.get(flag) is False:
            del kept[flag]
    return kept


def _as_doubles(value: Any) -> Any:
    """The value with the numbers that JSON's canonical form has: integers beyond 2^53 as doubles."""
    if isinstance(value, int) and abs(value) >= _EXACT:
        return float(value)
    if isinstance(value, Mapping):
        return {key: _as_doubles(inner) for key, inner in value.items()}
    return [_as_doubles(inner) for inner in value] if isinstance(value, list) else value


def _clean(value: Any) -> Any:
    """The value without empty texts, lists, objects and nulls, at any depth; None for an empty one."""
    if isinstance(value, Mapping):
        return {k: kept for k, inner in value.items() if (kept := _clean(inner)) is not None} or None
    if isinstance(value, list):
        return [kept for inner in value if (kept := _clean(inner)) is not None] or None
    return None if value == "" else value
