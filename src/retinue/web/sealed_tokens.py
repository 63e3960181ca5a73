"""Encrypts a token with a key made of the mesh key and the purpose of the text (JWE, A256GCM)."""

from __future__ import annotations

import hmac
from hashlib import sha256

_HEADER = {"alg": "dir", "enc": "A256GCM"}


def seal_token(token: bytes, key: bytes, purpose: str) -> str:
    """The encrypted token, as text."""
    # joserfc and cryptography take 13 MB: they are loaded with the first sealed token or mesh token
    from joserfc import jwe
    from joserfc.jwk import OctKey

    return jwe.encrypt_compact(_HEADER, token, OctKey.import_key(_derive(key, purpose)))


def open_token(sealed: str, key: bytes, purpose: str) -> bytes | None:
    """The token; None if it was encrypted with another key or for another purpose."""
    from joserfc import jwe
    from joserfc.errors import JoseError
    from joserfc.jwk import OctKey
    from joserfc.util import json_b64encode

    # joserfc breaks on a header whose values have other types; every text of `seal_token` has this one
    if sealed.partition(".")[0] != json_b64encode(_HEADER).decode():
        return None
    try:
        return jwe.decrypt_compact(sealed, OctKey.import_key(_derive(key, purpose))).plaintext
    except (JoseError, ValueError):
        return None


def _derive(key: bytes, purpose: str) -> bytes:
    return hmac.new(key, b"retinue " + purpose.encode(), sha256).digest()
