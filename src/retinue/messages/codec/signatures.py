"""Signs envelopes: a detached JWS (HS256, the mesh key) over the RFC 8785 form.

``signature`` holds ``protected`` and ``signature``, as in a signed A2A card. Everything in the envelope but
``signature`` is covered. A signature shows that a member of the mesh wrote the message, also where it came
through a carrier that has no token; it grants no rights.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

ALGORITHM = "HS256"
_CONTEXT = b"retinue message key\0"


def key_id(key: bytes) -> str:
    """A public identifier of the key that messages are signed with."""
    return sha256(b"id\0" + _derive(key)).hexdigest()[:12]


def _derive(key: bytes) -> bytes:
    # a key of its own, so that no signature of a message is one of a token or a trace
    return sha256(_CONTEXT + key).digest()


def sign(message: Mapping[str, Any], key: bytes) -> dict[str, Any]:
    """The message with its signature; raises ValueError where it has no canonical form."""
    # joserfc and cryptography take 13 MB: they are loaded with the first signature
    from joserfc import jws
    from joserfc.jwk import OctKey

    plain = {name: value for name, value in message.items() if name != "signature"}
    header = {"alg": ALGORITHM, "kid": key_id(key)}
    signed = jws.serialize_compact(header, _canonical(plain), OctKey.import_key(_derive(key)), [ALGORITHM])
    protected, _, signature = signed.split(".")
    return {**plain, "signature": {"protected": protected, "signature": signature}}


def find_flaw(message: Mapping[str, Any], key: bytes) -> str | None:
    """Why the signature of a message is not valid; None when it is."""
    from joserfc import jws
    from joserfc.errors import JoseError
    from joserfc.jwk import OctKey

    found = message.get("signature")
    if not isinstance(found, Mapping):
        return "the message is not signed"
    protected, signature = found.get("protected"), found.get("signature")
    if not isinstance(protected, str) or not isinstance(signature, str):
        return "signature has no protected and signature, both strings in base64url"
    plain = {name: value for name, value in message.items() if name != "signature"}
    try:
        payload = urlsafe_b64encode(_canonical(plain)).rstrip(b"=").decode()
        compact = f"{protected}.{payload}.{signature}".encode()
        header = jws.extract_compact(compact).headers()
        if header.get("kid") != key_id(key):
            return "it is signed with the key of another mesh"
        jws.deserialize_compact(compact, OctKey.import_key(_derive(key)), [ALGORITHM])
    except JoseError as error:
        return f"it does not hold: {error}"
    except (ValueError, TypeError) as error:
        return f"it cannot be read: {error}"
    return None


def digest_of(message: Mapping[str, Any]) -> bytes:
    """The SHA-256 digest of the signed content; raises ValueError where it has no canonical form."""
    return sha256(
        _canonical({name: value for name, value in message.items() if name != "signature"})
    ).digest()


def _canonical(plain: Mapping[str, Any]) -> bytes:
    # needed only where messages are signed
    import rfc8785

    try:
        return rfc8785.dumps(dict(plain))
    except rfc8785.CanonicalizationError as error:
        raise ValueError(f"the message has no canonical form: {error}") from None
