"""Signatures of webhooks in the form of Standard Webhooks 1.0.0. No I/O.

A request carries three headers: the id of the event, the time of the sending in seconds since 1970, and one
or more signatures ``v1,<base64>``. A signature is the HMAC-SHA256 of ``<id>.<time>.<body>``. A secret is
shown as ``whsec_`` with the base64 of its bytes.
"""

from __future__ import annotations

import base64
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from retinue.core.errors import InvalidParametersError, NotAuthenticatedError, Problem
from retinue.workflows.triggers import TOLERANCE_S

ID_HEADER = "webhook-id"
TIME_HEADER = "webhook-timestamp"
SIGNATURE_HEADER = "webhook-signature"

PREFIX = "whsec_"
SECRET_BYTES = 32
_LEAST_BYTES, _MOST_BYTES = 24, 64
"""The bounds of Standard Webhooks."""

_VERSION = "v1"
_MAX_SIGNATURES = 16
_EVENT_ID = re.compile(r"[\x21-\x2d\x2f-\x7e]{1,255}")
"""Printable without the full stop, which separates what is signed."""

_TIME = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True, slots=True)
class Delivery:
    """One verified sending: the id of the event and the time of the sending in seconds since 1970."""

    event: str
    sent_at: float


def new_secret() -> str:
    """A new random secret."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def check_secret(text: str) -> str:
    """The secret that a sender has made, as stored; raises InvalidParametersError without quoting it."""
    try:
        key = _read_secret(text.strip())
    except ValueError:
        key = b""
    if not _LEAST_BYTES <= len(key) <= _MOST_BYTES:
        wanted = f"{PREFIX} and the base64 of {_LEAST_BYTES} to {_MOST_BYTES} bytes"
        raise InvalidParametersError(
            [Problem("secret", f"field 'secret' is no secret of a webhook: send {wanted}, or leave it out")]
        )
    return text.strip()


def sign(secret: str, event: str, sent_at: int, body: bytes) -> str:
    """The value of `SIGNATURE_HEADER` for a request."""
    return f"{_VERSION},{base64.b64encode(_digest(secret, event, str(sent_at), body)).decode()}"


def verify(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> Delivery:
    """The delivery of a request; ``headers`` have lower-case names, ``now`` is in seconds since 1970.

    Raises NotAuthenticatedError.
    """
    for header in (ID_HEADER, TIME_HEADER, SIGNATURE_HEADER):
        if not headers.get(header):
            raise _refused(f"the header {header} is missing")
    event, time, signatures = headers[ID_HEADER], headers[TIME_HEADER], headers[SIGNATURE_HEADER]
    if _EVENT_ID.fullmatch(event) is None:
        raise _refused(f"the header {ID_HEADER} is not 1 to 255 printable characters without a full stop")
    if _TIME.fullmatch(time) is None:
        raise _refused(f"the header {TIME_HEADER} is not a time in whole seconds since 1970")
    wanted = _digest(secret, event, time, body)
    # each is compared, so that the duration tells nothing
    matches = [hmac.compare_digest(wanted, sent) for sent in _list_signatures(signatures)]
    if not any(matches):
        raise _refused("the signature does not fit the secret of this webhook, the headers and the body")
    sent_at = float(time)
    if abs(now - sent_at) > TOLERANCE_S:
        side = "old" if sent_at < now else "ahead of this machine's clock"
        raise NotAuthenticatedError(
            f"the webhook is refused: the header {TIME_HEADER} is {abs(now - sent_at):,.0f} s {side}; "
            f"at most {TOLERANCE_S:.0f} s are accepted",
            remedy="sign each sending with the time of now; check the clock of the sender",
        )
    return Delivery(event, sent_at)


def _refused(problem: str) -> NotAuthenticatedError:
    return NotAuthenticatedError(
        f"the webhook is refused: {problem}",
        remedy=f"send {ID_HEADER}, {TIME_HEADER} and {SIGNATURE_HEADER} as Standard Webhooks defines them",
    )


def _digest(secret: str, event: str, time: str, body: bytes) -> bytes:
    return hmac.digest(_read_secret(secret), f"{event}.{time}.".encode() + body, "sha256")


def _read_secret(text: str) -> bytes:
    """The bytes of a secret; raises ValueError."""
    if not text.startswith(PREFIX):
        raise ValueError("no secret of a webhook")
    return base64.b64decode(text.removeprefix(PREFIX), validate=True)


def _list_signatures(text: str) -> list[bytes]:
    """The signatures of our version; others, such as those of public keys, are ignored."""
    values = []
    for signature in text.split()[:_MAX_SIGNATURES]:
        version, _, encoded = signature.partition(",")
        if version == _VERSION:
            try:
                values.append(base64.b64decode(encoded, validate=True))
            except ValueError:  # no base64, or other letters than those of ASCII
                continue
    return values
