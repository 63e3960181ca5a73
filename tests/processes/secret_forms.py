"""A secret in the forms in which it could leave a process: as it is, in base64, hex and percent-encoding."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from urllib.parse import quote

_SHORTEST = 12
"""Fewer bytes of an encoded secret could be there by chance."""


def forms_of(secret: bytes) -> frozenset[bytes]:
    """The forms of a secret; of base64, the part that is the same whatever stands around the secret."""
    return frozenset(one for one in _forms(secret) if len(one) >= _SHORTEST)


def _forms(secret: bytes) -> Iterator[bytes]:
    yield secret
    yield secret[::-1]
    yield secret.hex().encode()
    yield secret.upper()
    yield quote(secret, safe="").encode()
    for before in range(3):
        whole = base64.b64encode(b"\0" * before + secret)
        # the first and the last group depend on what stands beside the secret
        inner = whole[4 if before else 0 : -4]
        yield inner
        yield inner.replace(b"+", b"-").replace(b"/", b"_")
    if len(secret) % 2 == 0 and all(one in b"0123456789abcdef" for one in secret):
        yield from _forms(bytes.fromhex(secret.decode()))


def find_secret(secret: bytes, text: bytes) -> bytes | None:
    """A form of the secret that the text contains, None without one."""
    return next((one for one in forms_of(secret) if one in text), None)
