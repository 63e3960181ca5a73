"""Encrypts the token of a session with a key made of the mesh key and the session's id (JWE, A256GCM)."""

from __future__ import annotations

import hmac
from hashlib import sha256

_HEADER = {"alg": "dir", "enc": "A256GCM"}
_PURPOSE = b"retinue dashboard session "


def seal_token(token: bytes, key: bytes, session: str) -> str:
    """The encrypted token, as text."""
    # joserfc and cryptography take 13 MB: they are loaded with the first session, or the first mesh token
    from joserfc import jwe
    from joserfc.jwk import OctKey

    return jwe.encrypt_compact(_HEADER, token, OctKey.import_key(_derive(key, session)))


def open_token(sealed: str, key: bytes, session: str) -> bytes | None:
    """The token; None if it was encrypted with another key or for another session."""
    from joserfc import jwe
    from joserfc.errors import JoseError
    from joserfc.jwk import OctKey

    try:
        return jwe.decrypt_compact(sealed, OctKey.import_key(_derive(key, session))).plaintext
    except (JoseError, ValueError):
        return None


def _derive(key: bytes, session: str) -> bytes:
    return hmac.new(key, _PURPOSE + session.encode(), sha256).digest()
