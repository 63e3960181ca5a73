"""The public keys with which an authorization server signs its tokens (JWKS, RFC 7517).

They are read when the first token comes, again when they are old, and at once, though not often, when a
token names a key that is not among them. A server that does not answer leaves them as they are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import structlog
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key

from retinue.core.errors import CallTimedOutError, NotAuthenticatedError, RetinueError, StateError
from retinue.drivers.http import HttpClient, TransportError

LIFETIME_S = 3600.0
FILE_LIFETIME_S = 10.0
ASK_AGAIN_S = 10.0
"""How long after one reading the keys are not read again, whatever the tokens name."""

TIMEOUT_S = 5.0
MAX_KEYS_BYTES = 256 * 1024
MAX_KEYS = 100

_log = structlog.get_logger("retinue.auth")


class IssuerKeys:
    """The keys at ``url`` or in ``file``, read by one task at a time; ``clock`` counts seconds."""

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
        """The keys as they are known, the same object until they change; old ones are read beside."""
        lifetime_s = FILE_LIFETIME_S if self._url is None else LIFETIME_S
        if self._clock() - self._read_at >= lifetime_s:
            reading = self._start()
            if reading is not None and (not self._keys or self._url is None):
                await asyncio.shield(reading)
        return self._keys

    async def find(self, key_id: object, algorithm: str) -> Key | None:
        """The key of this id that may make such signatures; the only one, where the token names none.

        Raises NotAuthenticatedError while no key is known at all.
        """
        found = self._find(key_id, algorithm)
        if found is None and (reading := self._start()) is not None:
            await asyncio.shield(reading)
            found = self._find(key_id, algorithm)
        if found is None and not self._keys:
            raise NotAuthenticatedError(
                "the keys of the token's issuer cannot be read now", remedy="try again in a while"
            )
        return found

    def _start(self) -> asyncio.Task[None] | None:
        """The reading that is under way, or a new one; None so soon after the last."""
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
        assert url is not None, "one of both is set"
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
            raise ValueError(f"auth.jwks_url answers with status {reply.status}")
        return reply.body


def _parse_keys(body: bytes) -> tuple[Key, ...]:
    """The public keys of a set that can check signatures; the others are left out (RFC 7517, 5)."""
    try:
        rows = orjson.loads(body)["keys"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise ValueError("what auth.jwks_url or auth.jwks_file names is no set of keys") from None
    keys = []
    for row in rows[:MAX_KEYS] if isinstance(rows, list) else ():
        if not isinstance(row, dict) or row.get("kty") == "oct" or row.get("use", "sig") != "sig":
            continue
        try:
            keys.append(JWKRegistry.import_key(row))
        except (JoseError, ValueError, TypeError, KeyError):
            continue
    if not keys:
        raise ValueError("the set has no key that can check a signature")
    return tuple(keys)


def _fits(key: Key, algorithm: str) -> bool:
    """Whether a key makes such signatures: by its kind, its curve, and what it says itself."""
    said = key.as_dict(private=False)
    if said.get("alg", algorithm) != algorithm and not (
        said.get("alg") == "EdDSA" and algorithm == "Ed25519"
    ):
        return False
    curve = _CURVES.get(algorithm)
    return said.get("kty") == "RSA" if curve is None else said.get("crv") == curve


_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "Ed25519": "Ed25519"}
