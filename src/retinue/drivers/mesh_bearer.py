"""The key that all processes of one mesh share, and what its holders send each other as a token.

``keys/mesh.key`` (0600) holds 32 random bytes in hex; the text is the key. The token is ``rtnm_`` and a
JWT under HS256, good for a minute and for the one place (host and port) that it is sent to, so that
whoever takes it down on the way, or gets it by a card of theirs, has a key to nothing else.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OctKey

from retinue.core.call import Principal
from retinue.core.errors import InvalidSettingError, NotAuthenticatedError, StateDamagedError
from retinue.drivers.files import replace_file, storage_errors

KEY_BYTES = 32
MIN_KEY_LENGTH = 32
"""Characters; a text of another spelling is a key as well."""

BEARER_PREFIX = "rtnm_"
BEARER_LIFETIME_S = 60
CLOCK_SKEW_S = 30

MESH_MEMBER = Principal("mesh", "mesh", frozenset({"exposed", "mesh", "runs_code"}))
"""Whoever proves to hold the mesh's key."""

_FILE = "mesh.key"
_ALGORITHM = "HS256"


def mesh_key(keys: Path) -> bytes:
    """The key in the folder ``keys`` of a state, made at the first call; raises StateDamagedError."""
    path = keys / _FILE
    if (key := _read(path)) is not None:
        return key
    with storage_errors(path):
        keys.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(keys / ".lock"):
            if (key := _read(path)) is not None:
                return key
            key = secrets.token_hex(KEY_BYTES).encode()
            replace_file(path, key, mode=0o600)
    return key


def adopt_mesh_key(keys: Path, key: bytes) -> bool:
    """Make this state one of the mesh with this key; False where it was that before.

    Raises InvalidSettingError when it is of another.
    """
    path = keys / _FILE
    with storage_errors(path):
        keys.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(keys / ".lock"):
            held = _read(path)
            if held == key:
                return False
            if held is not None:
                raise InvalidSettingError(
                    "RETINUE_JOIN",
                    "this state belongs to another mesh",
                    remedy=f"use a state folder of its own (RETINUE_HOME), or remove {path}",
                )
            replace_file(path, key, mode=0o600)
            return True


def key_id(key: bytes) -> str:
    """The name of a key, which does not give it away."""
    return sha256(b"retinue mesh key\x00" + key).hexdigest()[:16]


class MeshBearer:
    """Makes and knows the tokens of one mesh; ``clock`` gives seconds since 1970."""

    def __init__(self, key: bytes, *, clock: Callable[[], float] = time.time) -> None:
        self._key = OctKey.import_key(key)
        self._kid = key_id(key)
        self._clock = clock
        self._made: dict[str, tuple[float, str]] = {}
        self._known: dict[bytes, tuple[float, str]] = {}

    def make(self, url: str) -> str:
        """The token for the place at ``url``; one is used for half of its time."""
        host = urlsplit(url).netloc.rpartition("@")[2].lower()
        now = self._clock()
        made = self._made.get(host)
        if made is not None and now - made[0] < BEARER_LIFETIME_S / 2:
            return made[1]
        claims = {"aud": host, "iat": int(now), "exp": int(now) + BEARER_LIFETIME_S}
        header = {"alg": _ALGORITHM, "kid": self._kid}
        token = BEARER_PREFIX + jwt.encode(header, claims, self._key, algorithms=[_ALGORITHM])
        if len(self._made) >= _MAX_PLACES:
            self._made.clear()
        self._made[host] = (now, token)
        return token

    async def read(self, token: bytes, place: str) -> Principal | None:
        """The mesh's member who sends this to ``place``; None where it is no such token.

        Raises NotAuthenticatedError for one of another mesh, for another place, or past its time.
        """
        if not token.startswith(BEARER_PREFIX.encode()):
            return None
        expires, audience = self._known.get(token) or self._verify(token)
        if expires + CLOCK_SKEW_S <= self._clock() or expires > self._clock() + _LATEST_S:
            raise NotAuthenticatedError(
                "this token of the mesh is out of date", remedy="do the clocks of both machines agree?"
            )
        if audience != place:
            raise NotAuthenticatedError(
                "this token of the mesh is for another place",
                remedy="where a proxy or another address leads here: name it in doors.hosts",
            )
        return MESH_MEMBER

    def _verify(self, token: bytes) -> tuple[float, str]:
        """Until when, and where it is good; kept, because one token comes with many calls."""
        try:
            claims = jwt.decode(token[len(BEARER_PREFIX) :], self._key, algorithms=[_ALGORITHM]).claims
            facts = float(claims["exp"]), str(claims["aud"])
        except (JoseError, ValueError, KeyError, TypeError):
            raise NotAuthenticatedError(
                "this token is of another mesh", remedy="join this one: retinue token new --join"
            ) from None
        if len(self._known) >= _MAX_PLACES:
            self._known.clear()
        self._known[token] = facts
        return facts


_MAX_PLACES = 1000
_LATEST_S = BEARER_LIFETIME_S + CLOCK_SKEW_S


def _read(path: Path) -> bytes | None:
    try:
        key = path.read_text("ascii").strip().encode()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StateDamagedError(
            str(path), f"no key in it ({type(error).__name__})", remedy="remove it; a new one is made"
        ) from error
    if len(key) < MIN_KEY_LENGTH:
        raise StateDamagedError(str(path), "it holds no key", remedy="remove it; a new one is made")
    return key
