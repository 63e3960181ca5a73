"""The tokens of a state: made, listed and revoked by commands, known to every running process.

They stand in ``keys/tokens.json`` as SHA-256 of random text, so that the file lets nobody in. Processes
look at the file's status twice a second, and for a token that they do not know: a new one works at once,
and a revoked one no more within a second, without a restart. A file that cannot be read lets nobody in.
"""

from __future__ import annotations

import hmac
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import orjson
import structlog
from filelock import FileLock

from retinue.core.call import Principal
from retinue.core.errors import NotAuthenticatedError, StateDamagedError, StateError, UnknownTokenError
from retinue.drivers.files import replace_file, storage_errors
from retinue.mesh.suggest import suggest

SCOPES = ("exposed", "mesh", "runs_code")
PREFIX = "rtn_"
LOOK_EVERY_S = 0.5
NOTE_USE_EVERY_S = 60.0

_FILE = "tokens.json"
_USES = "used"
_log = structlog.get_logger("retinue.tokens")


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """What is known of one token; times are seconds since 1970, ``digest`` SHA-256 of the whole token.

    ``kind`` join = it was made for another machine of this mesh. Several tokens of one name are the
    same caller, so that one can take the place of another.
    """

    id: str
    digest: str
    name: str | None
    kind: Literal["token", "join"]
    scopes: tuple[str, ...]
    agents: tuple[str, ...]
    created_at: float
    expires_at: float | None = None

    @property
    def principal(self) -> Principal:
        """Who sends it."""
        scopes = frozenset(self.scopes)
        if self.kind == "join":
            return Principal(f"join:{self.name or self.id}", "mesh", scopes, self.agents)
        return Principal(f"token:{self.name or self.id}", "token", scopes, self.agents)

    def is_expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now


class TokenFile:
    """The tokens in the folder ``keys`` of a state; for commands, one at a time by its lock."""

    def __init__(self, keys: Path) -> None:
        self._keys = keys
        self._path = keys / _FILE

    def issue(
        self,
        scopes: Iterable[str],
        *,
        name: str | None = None,
        agents: Iterable[str] = (),
        lifetime_s: float | None = None,
        kind: Literal["token", "join"] = "token",
    ) -> tuple[IssuedToken, str]:
        """A new token: what is kept of it, and the text itself, which nobody will see again."""
        now = time.time()
        with self._changing() as held:
            ids = {one.id for one in held}
            token_id = next(i for i in iter(lambda: secrets.token_hex(4), None) if i not in ids)
            text = f"{PREFIX}{token_id}_{secrets.token_urlsafe(32)}"
            issued = IssuedToken(
                id=token_id,
                digest=sha256(text.encode()).hexdigest(),
                name=name,
                kind=kind,
                scopes=tuple(scope for scope in SCOPES if scope in set(scopes)),
                agents=tuple(agents),
                created_at=now,
                expires_at=None if lifetime_s is None else now + lifetime_s,
            )
            held.append(issued)
        return issued, text

    def list_all(self) -> tuple[IssuedToken, ...]:
        """Every token that was not revoked, oldest first; raises StateDamagedError."""
        return read_tokens(self._path)

    def last_used(self, token_id: str) -> float | None:
        """When it was last sent, to the minute; None = never."""
        try:
            return (self._keys / _USES / token_id).stat().st_mtime
        except OSError:
            return None

    def revoke(self, token_id: str) -> IssuedToken:
        """Forget a token; raises UnknownTokenError with near ids."""
        with self._changing() as held:
            found = next((one for one in held if one.id == token_id), None)
            if found is None:
                raise UnknownTokenError(token_id, near=suggest(token_id, [one.id for one in held]))
            held.remove(found)
        (self._keys / _USES / token_id).unlink(missing_ok=True)
        return found

    def _changing(self) -> _Change:
        return _Change(self._keys, self._path)


class _Change:
    """The list of tokens, held alone and written back at the end of the block unless it failed."""

    def __init__(self, keys: Path, path: Path) -> None:
        self._keys = keys
        self._path = path

    def __enter__(self) -> list[IssuedToken]:
        with storage_errors(self._keys):
            self._keys.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = FileLock(self._keys / ".lock")
            self._lock.acquire()
        try:
            self._held = list(read_tokens(self._path))
        except BaseException:
            self._lock.release()
            raise
        return self._held

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                with storage_errors(self._path):
                    replace_file(self._path, _render(self._held), mode=0o600)
        finally:
            self._lock.release()


class KnownTokens:
    """The tokens as a running process knows them; asked for each request that carries one."""

    def __init__(
        self,
        keys: Path,
        *,
        clock: Callable[[], float] = time.time,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        self._path = keys / _FILE
        self._uses = keys / _USES
        self._clock = clock
        self._look_every_s = look_every_s
        self._looked_at = float("-inf")
        self._seen: tuple[int, int, int] | None = None
        self._tokens: Mapping[str, tuple[IssuedToken, Principal]] = {}
        self._noted: dict[str, float] = {}

    async def read(self, token: bytes, place: str) -> Principal | None:
        """Who sends this token; None where it is none of these. Raises NotAuthenticatedError when expired.

        The id in the token finds the entry; its hash is compared in constant time.
        """
        if not token.startswith(PREFIX.encode()):
            return None
        token_id = token[len(PREFIX) :].partition(b"_")[0].decode("latin-1")
        now = time.monotonic()
        if token_id not in self._tokens or now - self._looked_at >= self._look_every_s:
            self._looked_at = now
            self._look()
        issued, principal = self._tokens.get(token_id, _UNKNOWN)
        if not hmac.compare_digest(sha256(token).hexdigest(), issued.digest):
            return None
        now = self._clock()
        if issued.is_expired(now):
            raise NotAuthenticatedError("this token has expired", remedy="ask for another: retinue token new")
        if now - self._noted.get(token_id, 0.0) >= NOTE_USE_EVERY_S:
            self._note_use(token_id, now)
        return principal

    def _look(self) -> None:
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_ino, status.st_size)
        except FileNotFoundError:
            self._seen, self._tokens = None, {}
            return
        except OSError as error:
            self._forget(str(error))
            return
        if seen == self._seen:
            return
        try:
            self._tokens = {one.id: (one, one.principal) for one in read_tokens(self._path)}
            self._seen = seen
        except StateError as error:
            self._forget(error.message)

    def _forget(self, problem: str) -> None:
        _log.warning("tokens cannot be read: none is accepted", problem=problem)
        self._seen, self._tokens = None, {}

    def _note_use(self, token_id: str, now: float) -> None:
        """Leave the time of use as that of an empty file, which needs no lock; it may fail."""
        self._noted[token_id] = now
        try:
            self._uses.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(self._uses / token_id, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.utime(descriptor, (now, now))
            finally:
                os.close(descriptor)
        except OSError as error:
            _log.debug("use of a token not noted", token=token_id, problem=error.strerror)


_DIGEST_LENGTH = 64
_NOBODY = IssuedToken("", "0" * _DIGEST_LENGTH, None, "token", (), (), 0.0)
_UNKNOWN = (_NOBODY, _NOBODY.principal)
"""What an unknown token is compared with, so that it takes as long as a known one."""


def read_tokens(path: Path) -> tuple[IssuedToken, ...]:
    """The tokens in the file, none without it; raises StateDamagedError."""
    try:
        found = orjson.loads(path.read_bytes())
        return tuple(_parse(row) for row in found["tokens"])
    except FileNotFoundError:
        return ()
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise StateDamagedError(
            str(path),
            f"no list of tokens in it ({type(error).__name__})",
            remedy="remove it; tokens are lost",
        ) from error


def _parse(row: Mapping[str, Any]) -> IssuedToken:
    expires, name = row["expires"], row["name"]
    digest, kind = str(row["sha256"]), row["kind"]
    if len(digest) != _DIGEST_LENGTH or kind not in ("token", "join"):
        raise ValueError("no token")
    return IssuedToken(
        id=str(row["id"]),
        digest=digest,
        name=None if name is None else str(name),
        kind=kind,
        scopes=_texts(row["scopes"]),
        agents=_texts(row["agents"]),
        created_at=float(row["created"]),
        expires_at=None if expires is None else float(expires),
    )


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError("no list")
    return tuple(map(str, value))


def _render(tokens: Sequence[IssuedToken]) -> bytes:
    rows = [
        {
            "id": one.id,
            "sha256": one.digest,
            "name": one.name,
            "kind": one.kind,
            "scopes": one.scopes,
            "agents": one.agents,
            "created": one.created_at,
            "expires": one.expires_at,
        }
        for one in tokens
    ]
    return orjson.dumps({"v": 1, "tokens": rows}, option=orjson.OPT_INDENT_2)
