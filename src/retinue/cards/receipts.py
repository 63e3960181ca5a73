"""Receipts: what a hub measured of one version of an agent, signed with the key of the hub's state.

A receipt is the JSON object ``{"receipt": {…}, "signature": {…}}``. The signature is that of a card: JWS with
a detached payload, over the canonical form (RFC 8785) of ``receipt`` as it was received, unknown fields
included. The payload names its type, the digest of the card's manifest and the repository, so that it proves
nothing about another card. This module does no I/O.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal, TypeGuard, cast, get_args

import orjson

from retinue.cards.signatures import CardSigner, TrustedKeys, Verdict
from retinue.core.errors import MalformedArtifactError

RECEIPT_TYPE = "application/vnd.retinue.receipt.v1+json"
"""Artifact type and media type of receipts, and the ``type`` of what is signed."""

MAX_RECEIPT_BYTES = 8 * 1024
MAX_KINDS = 32
"""Kinds of failures in one receipt."""

SCHEMA_BREAK = "output_validation_error"
"""The kind of failure of a result that the schema of the skill does not allow."""

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

_MAX_NUMBER = 2**53 - 1
_MAX_NAME = 200
_MAX_TEXT = 512
_MAX_SIGNATURE_CHARS = 4096

ExamOutcome = Literal["passed", "failed", "not_examined"]


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the hub with the key ``issuer`` measured of the card with ``digest`` in ``repository``.

    ``failures`` counts failed calls by the type of their error, ``latency_ms`` has the quantiles of
    `QUANTILES`, {} without calls. Times are whole seconds since 1970: the calls ended from ``begins_at`` to
    ``ends_at``. ``issuer`` is the id of the key.
    """

    repository: str
    digest: str
    agent: str
    issuer: str
    calls: int
    failures: Mapping[str, int]
    latency_ms: Mapping[str, int]
    exam: ExamOutcome
    begins_at: int
    ends_at: int
    issued_at: int

    @property
    def failed(self) -> int:
        """The number of failed calls."""
        return sum(self.failures.values())

    @property
    def schema_breaks(self) -> int:
        """The number of results that the schema of the skill does not allow."""
        return self.failures.get(SCHEMA_BREAK, 0)

    def to_json(self) -> dict[str, Any]:
        """The object that is signed."""
        return {
            "type": RECEIPT_TYPE,
            "repository": self.repository,
            "digest": self.digest,
            "agent": self.agent,
            "issuer": self.issuer,
            "calls": self.calls,
            "failures": dict(self.failures),
            "latency_ms": dict(self.latency_ms),
            "exam": self.exam,
            "begins_at": self.begins_at,
            "ends_at": self.ends_at,
            "issued_at": self.issued_at,
        }


@dataclass(frozen=True, slots=True)
class SignedReceipt:
    """A receipt with its signature; ``payload`` is what was signed, ``content`` the whole as it is stored."""

    receipt: Receipt
    signature: Mapping[str, str]
    payload: bytes
    content: bytes

    def verify(self, keys: TrustedKeys, now: float) -> Verdict:
        """Whether a trusted key has signed exactly this receipt."""
        return keys.verify([dict(self.signature)], (self.payload,), now)


def sign_receipt(receipt: Receipt, signer: CardSigner) -> SignedReceipt:
    """Sign a receipt, whose ``issuer`` is the id of the signer's key."""
    document = receipt.to_json()
    payload = _canonical(document, "a receipt")
    signature = signer.sign(payload)
    content = orjson.dumps({"receipt": document, "signature": signature})
    return SignedReceipt(receipt, signature, payload, content)


def parse_receipt(content: bytes, *, where: str) -> SignedReceipt:
    """Parse a stored receipt without verifying it; ``where`` names it in errors.

    Raises MalformedArtifactError for one that is too large, incomplete or contradicts itself.
    """
    if len(content) > MAX_RECEIPT_BYTES:
        raise MalformedArtifactError(where, f"a receipt has at most {MAX_RECEIPT_BYTES:,} bytes")
    try:
        document = orjson.loads(content)
    except ValueError as error:
        raise MalformedArtifactError(where, f"the receipt is not JSON ({error})") from error
    fields = document.get("receipt") if isinstance(document, dict) else None
    signature = document.get("signature") if isinstance(document, dict) else None
    if not isinstance(fields, dict):
        raise MalformedArtifactError(where, "it has no object receipt")
    if not isinstance(signature, dict) or not all(
        isinstance(signature.get(key), str) and len(signature[key]) <= _MAX_SIGNATURE_CHARS
        for key in ("protected", "signature")
    ):
        raise MalformedArtifactError(where, "it has no object signature with protected and signature")
    receipt = _Fields(fields, where).read()
    kept = {key: signature[key] for key in ("protected", "signature")}
    if find_key_id(kept) != receipt.issuer:
        raise MalformedArtifactError(where, "its issuer is not the key of its signature")
    return SignedReceipt(receipt, kept, _canonical(fields, where), content)


def find_key_id(signature: object) -> str | None:
    """The id of the key that a signature names; None where it names none."""
    if not isinstance(signature, Mapping):
        return None
    protected = signature.get("protected")
    if not isinstance(protected, str):
        return None
    try:
        header = orjson.loads(urlsafe_b64decode(protected + "=" * (-len(protected) % 4)))
    except ValueError:
        return None
    key_id = header.get("kid") if isinstance(header, dict) else None
    return key_id if isinstance(key_id, str) else None


def measure_quantiles(durations_ms: Iterable[float]) -> dict[str, int]:
    """The quantiles of `QUANTILES` by nearest rank, in whole milliseconds; {} for no durations."""
    ordered = sorted(durations_ms)
    if not ordered:
        return {}
    return {
        name: min(_MAX_NUMBER, round(ordered[max(0, ceil(share * len(ordered)) - 1)]))
        for name, share in QUANTILES.items()
    }


class _Fields:
    """Reads the fields of one receipt, and names the one that is wrong."""

    def __init__(self, fields: Mapping[str, Any], where: str) -> None:
        self._fields = fields
        self._where = where

    def read(self) -> Receipt:
        if self._fields.get("type") != RECEIPT_TYPE:
            raise self._error("type", f"is not {RECEIPT_TYPE}")
        receipt = Receipt(
            repository=self._text("repository"),
            digest=self._text("digest"),
            agent=self._text("agent"),
            issuer=self._text("issuer"),
            calls=self._number("calls"),
            failures=self._numbers("failures"),
            latency_ms=self._numbers("latency_ms"),
            exam=self._exam(),
            begins_at=self._number("begins_at"),
            ends_at=self._number("ends_at"),
            issued_at=self._number("issued_at"),
        )
        if receipt.failed > receipt.calls:
            raise self._error("failures", "are more than calls")
        if receipt.begins_at > receipt.ends_at:
            raise self._error("begins_at", "is after ends_at")
        return receipt

    def _exam(self) -> ExamOutcome:
        value = self._fields.get("exam")
        for outcome in get_args(ExamOutcome):
            if value == outcome:
                return cast(ExamOutcome, outcome)
        raise self._error("exam", "is not passed, failed or not_examined")

    def _text(self, key: str) -> str:
        value = self._fields.get(key)
        if not isinstance(value, str) or not 0 < len(value) <= _MAX_TEXT:
            raise self._error(key, f"is not a text of 1 to {_MAX_TEXT} characters")
        return value

    def _number(self, key: str) -> int:
        value = self._fields.get(key)
        if not _is_count(value):
            raise self._error(key, "is not a whole number from 0")
        return value

    def _numbers(self, key: str) -> dict[str, int]:
        value = self._fields.get(key)
        if not isinstance(value, dict) or len(value) > MAX_KINDS:
            raise self._error(key, f"is not an object with at most {MAX_KINDS} numbers")
        if not all(len(name) <= _MAX_NAME and _is_count(number) for name, number in value.items()):
            raise self._error(key, "has a value that is not a whole number from 0")
        return value

    def _error(self, key: str, problem: str) -> MalformedArtifactError:
        return MalformedArtifactError(self._where, f"{key} of the receipt {problem}")


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _MAX_NUMBER


def _canonical(document: Mapping[str, Any], where: str) -> bytes:
    import rfc8785

    try:
        return rfc8785.dumps(dict(document))
    except (rfc8785.CanonicalizationError, RecursionError, UnicodeEncodeError) as error:
        raise MalformedArtifactError(where, "the receipt has no canonical form") from error
